//! A seccomp profile as a filter of the kernel (classic BPF).
//!
//! It covers profiles that deny by default with an errno and whose rules compare arguments for equality or difference, as the
//! default profile of containerd; other profiles are left to the OCI runtime. Each architecture has a section with its own
//! numbers of the rules' system calls: this one always, the others that this kernel can run ([`compat`](super::compat)) where
//! the profile names them. A call of an architecture without a section kills the process, as libseccomp does with
//! architectures that a profile does not name. As with runc, a call that is newer than all that the profile names gets
//! ENOSYS, so that a program tries an older one.

use nix::libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, sock_filter,
};

use super::compat::{COMPAT, Compat, X32, X32_NAME, compat_number, x32_number};
use super::config::{Argument, Rule, Seccomp};
use super::syscalls::{ARCHITECTURE, number};

/// The kernel's limit of a filter (BPF_MAXINSNS).
const MAX_INSTRUCTIONS: usize = 4096;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;
/// The errno of a denied system call unless the profile has another.
const EPERM: u16 = 1;
/// The errno of a system call that does not exist.
const ENOSYS: u32 = 38;
/// errno is below this (include/linux/err.h).
const MAX_ERRNO: u16 = 4095;
const MAX_ARGUMENT: u8 = 5;
/// The instructions that compare half of an argument.
const HALF: usize = 3;

/// What an argument needs: masked, it has this value, or another one.
struct Comparison {
    index: u8,
    mask: u64,
    value: u64,
    is_equal: bool,
}

/// How wide an architecture's arguments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Bits32,
    Bits64,
}

/// The system calls of an architecture.
struct Calls {
    number: fn(&str) -> Option<u32>,
    word: Word,
}

const NATIVE: Calls = Calls {
    number,
    word: Word::Bits64,
};
const OF_X32: Calls = Calls {
    number: x32_number,
    word: Word::Bits32,
};
const OF_COMPAT: Calls = Calls {
    number: compat_number,
    word: Word::Bits32,
};

/// The filter; none if the profile has something that is not translated exactly.
pub fn compile(profile: &Seccomp) -> Option<Vec<sock_filter>> {
    let named = |name: &String| name.starts_with("SCMP_ARCH_");
    if ARCHITECTURE == 0
        || profile.default_action != "SCMP_ACT_ERRNO"
        || !profile.architectures.iter().all(named)
    {
        return None;
    }
    let lists = |name: &str| profile.architectures.iter().any(|listed| listed == name);
    let native = section(profile, &NATIVE)?;
    let mut own = vec![load(NUMBER), jump(BPF_JGE, X32, 0, 1)];
    if cfg!(target_arch = "x86_64") && lists(X32_NAME) {
        own.push(skip(&native)?);
        own.extend(native);
        own.extend(section(profile, &OF_X32)?);
    } else {
        own.push(ret(SECCOMP_RET_KILL_PROCESS));
        own.extend(native);
    }
    let mut filter = vec![load(ARCH), jump(BPF_JEQ, ARCHITECTURE, 1, 0), skip(&own)?];
    filter.extend(own);
    if let Some(compat) = COMPAT
        && lists(compat.name)
    {
        if !covers_multiplexers(profile, &compat) {
            return None;
        }
        let mut section = section(profile, &OF_COMPAT)?;
        section.insert(0, load(NUMBER));
        filter.extend([jump(BPF_JEQ, compat.architecture, 1, 0), skip(&section)?]);
        filter.extend(section);
    }
    filter.push(ret(SECCOMP_RET_KILL_PROCESS));
    (filter.len() <= MAX_INSTRUCTIONS).then_some(filter)
}

/// The instructions for the calls of one architecture, whose number is loaded. They end with a return.
fn section(profile: &Seccomp, calls: &Calls) -> Option<Vec<sock_filter>> {
    let default = errno(profile.default_errno)?;
    let numbers = |rule: &Rule| -> Vec<u32> {
        rule.names
            .iter()
            .filter_map(|name| (calls.number)(name))
            .collect()
    };
    let mut decided = std::collections::BTreeMap::new();
    for rule in &profile.syscalls {
        let result = action(rule)?;
        for call in numbers(rule) {
            // Which of two actions counts depends on libseccomp's optimizer.
            if *decided.entry(call).or_insert(result) != result {
                return None;
            }
        }
    }
    let mut filter = Vec::new();
    if let Some((last, _)) = decided.last_key_value() {
        filter.extend([jump(BPF_JGT, *last, 0, 1), ret(SECCOMP_RET_ERRNO | ENOSYS)]);
    }
    for rule in profile.syscalls.iter().filter(|rule| rule.args.is_empty()) {
        let result = action(rule)?;
        for call in numbers(rule) {
            filter.extend([jump(BPF_JEQ, call, 0, 1), ret(result)]);
        }
    }
    for rule in profile.syscalls.iter().filter(|rule| !rule.args.is_empty()) {
        let result = action(rule)?;
        let comparisons: Vec<Comparison> = rule.args.iter().map(comparison).collect::<Option<_>>()?;
        let mut indexes: Vec<u8> = comparisons.iter().map(|comparison| comparison.index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        if indexes.len() != comparisons.len() {
            return None;
        }
        for call in numbers(rule) {
            filter.extend(conditional(call, &comparisons, calls.word, result)?);
        }
    }
    filter.push(ret(default));
    Some(filter)
}

/// Whether each call that an architecture also makes through another one gets there what it gets itself. libseccomp would
/// compare the other one's argument.
fn covers_multiplexers(profile: &Seccomp, compat: &Compat) -> bool {
    compat.multiplexers.iter().all(|(multiplexer, calls)| {
        let of_it: Vec<Option<u32>> = profile
            .syscalls
            .iter()
            .filter(|rule| rule.args.is_empty() && names_any(rule, &[*multiplexer]))
            .map(action)
            .collect();
        let mut rules = profile.syscalls.iter().filter(|rule| names_any(rule, calls));
        rules.all(|rule| of_it.contains(&action(rule)))
    })
}

fn names_any(rule: &Rule, calls: &[&str]) -> bool {
    rule.names.iter().any(|name| calls.contains(&name.as_str()))
}

/// The instructions of a rule with comparisons; what follows them is reached if one does not hold.
fn conditional(call: u32, comparisons: &[Comparison], word: Word, result: u32) -> Option<Vec<sock_filter>> {
    let halves: &[u32] = match word {
        Word::Bits32 => &[0],
        Word::Bits64 => &[0, 32],
    };
    // The comparisons, and the return.
    let body = comparisons.len() * halves.len() * HALF + 1;
    let mut filter = vec![load(NUMBER), jump(BPF_JEQ, call, 0, u8::try_from(body).ok()?)];
    let mut left = body;
    for comparison in comparisons {
        if word == Word::Bits32 && comparison.value > u64::from(u32::MAX) {
            return None;
        }
        // Little-endian as on all architectures with numbers here.
        let at = ARGUMENTS + u32::from(comparison.index) * 8;
        for (position, shift) in halves.iter().enumerate() {
            let half = |value: u64| ((value >> shift) & u64::from(u32::MAX)) as u32;
            left -= HALF;
            let fails = u8::try_from(left).ok()?;
            // The comparison's halves behind this one.
            let others = u8::try_from((halves.len() - position - 1) * HALF).ok()?;
            let is_last = others == 0;
            let (same, different) = match (comparison.is_equal, is_last) {
                (true, _) => (0, fails),
                (false, true) => (fails, 0),
                // Half of it is enough.
                (false, false) => (0, others),
            };
            filter.extend([
                load(at + shift / 8),
                sock_filter {
                    code: (BPF_ALU | BPF_AND | BPF_K) as u16,
                    jt: 0,
                    jf: 0,
                    k: half(comparison.mask),
                },
                jump(BPF_JEQ, half(comparison.value), same, different),
            ]);
        }
    }
    filter.push(ret(result));
    Some(filter)
}

fn comparison(argument: &Argument) -> Option<Comparison> {
    let (mask, value, is_equal) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (u64::MAX, argument.value, true),
        "SCMP_CMP_NE" => (u64::MAX, argument.value, false),
        // The first value is the mask.
        "SCMP_CMP_MASKED_EQ" => (argument.value, argument.value_two, true),
        _ => return None,
    };
    (argument.index <= MAX_ARGUMENT && value & mask == value).then_some(Comparison {
        index: argument.index,
        mask,
        value,
        is_equal,
    })
}

fn action(rule: &Rule) -> Option<u32> {
    match rule.action.as_str() {
        "SCMP_ACT_ALLOW" => Some(SECCOMP_RET_ALLOW),
        "SCMP_ACT_ERRNO" => errno(rule.errno),
        "SCMP_ACT_KILL_PROCESS" => Some(SECCOMP_RET_KILL_PROCESS),
        _ => None,
    }
}

fn errno(number: Option<u16>) -> Option<u32> {
    let number = number.unwrap_or(EPERM);
    (number <= MAX_ERRNO).then_some(SECCOMP_RET_ERRNO | u32::from(number))
}

fn load(offset: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn ret(value: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, value)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Jumps over these instructions.
fn skip(instructions: &[sock_filter]) -> Option<sock_filter> {
    let length = u32::try_from(instructions.len()).ok()?;
    Some(statement(BPF_JMP | BPF_JA, length))
}

fn jump(kind: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | kind | BPF_K) as u16,
        jt,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel does.
    fn run(filter: &[sock_filter], arch: u32, call: u32, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(call.to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend([0; 8]);
        arguments
            .iter()
            .for_each(|argument| data.extend(argument.to_le_bytes()));
        let (mut at, mut a) = (0, 0);
        loop {
            let i = filter[at];
            at += 1;
            let code = u32::from(i.code);
            let condition = |holds: bool| usize::from(if holds { i.jt } else { i.jf });
            if code == BPF_LD | BPF_W | BPF_ABS {
                let offset = i.k as usize;
                a = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
            } else if code == BPF_ALU | BPF_AND | BPF_K {
                a &= i.k;
            } else if code == BPF_JMP | BPF_JEQ | BPF_K {
                at += condition(a == i.k);
            } else if code == BPF_JMP | BPF_JGE | BPF_K {
                at += condition(a >= i.k);
            } else if code == BPF_JMP | BPF_JGT | BPF_K {
                at += condition(a > i.k);
            } else if code == BPF_JMP | BPF_JA {
                at += i.k as usize;
            } else {
                assert_eq!(code, BPF_RET | BPF_K);
                return i.k;
            }
        }
    }

    fn profile(rules: serde_json::Value) -> Seccomp {
        serde_json::from_value(serde_json::json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules}))
            .unwrap()
    }

    #[test]
    fn a_rule_allows_its_calls_with_its_arguments_and_nothing_else() {
        let profile = profile(serde_json::json!([
            {"names": ["read", "no_such_call"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 2_114_060_288_u64, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 0xffff_ffff_u64, "op": "SCMP_CMP_EQ"}]},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]},
        ]));
        let filter = compile(&profile).unwrap();
        let ask = |name: &str, first: u64| {
            run(
                &filter,
                ARCHITECTURE,
                number(name).unwrap(),
                [first, 9, 9, 9, 9, 9],
            )
        };
        let (allow, eperm) = (SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | 1);
        for (name, first, expected) in [
            ("read", 5, allow),
            ("write", 5, eperm),
            ("clone", 0x11, allow),
            ("clone", 0x1000_0000, eperm),
            ("clone", 0x1_0000_0011, allow),
            ("personality", 8, allow),
            ("personality", 9, eperm),
            ("personality", 0xffff_ffff, allow),
            ("personality", 0x1_0000_0008, eperm),
            ("clone3", 0, SECCOMP_RET_ERRNO | 38),
            ("socket", 40, eperm),
            ("socket", 1, allow),
            ("socket", 0x1_0000_0028, allow),
            ("faccessat2", 0, SECCOMP_RET_ERRNO | ENOSYS),
        ] {
            assert_eq!(ask(name, first), expected, "{name} {first:#x}");
        }
        let kill = SECCOMP_RET_KILL_PROCESS;
        assert_eq!(run(&filter, 0x4000_0003, 3, [0; 6]), kill, "i386");
        assert_eq!(run(&filter, ARCHITECTURE, X32, [0; 6]), kill, "x32");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_listed_architecture_gets_its_own_calls_and_no_others() {
        const I386: u32 = 0x4000_0003;
        let mut profile = profile(serde_json::json!([
            {"names": ["read", "socketcall", "mseal"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["rt_sigaction"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "value": 7, "op": "SCMP_CMP_EQ"}]},
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]},
        ]));
        profile.architectures = ["X86_64", "X86", "X32"]
            .map(|name| format!("SCMP_ARCH_{name}"))
            .to_vec();
        let filter = compile(&profile).unwrap();
        let (allow, eperm) = (SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | 1);
        for (arch, call, first, second, expected) in [
            (ARCHITECTURE, 0, 0, 0, allow),
            (ARCHITECTURE, 3, 0, 0, eperm),
            (ARCHITECTURE, 13, 0, 7, allow),
            (ARCHITECTURE, 463, 0, 0, SECCOMP_RET_ERRNO | ENOSYS),
            (I386, 3, 0, 0, allow),
            (I386, 0, 0, 0, eperm),
            (I386, 102, 0, 0, allow),
            (I386, 174, 0, 7, allow),
            (I386, 174, 0, 8, eperm),
            (I386, 359, 40, 0, eperm),
            (I386, 359, 1, 0, allow),
            (I386, 463, 0, 0, SECCOMP_RET_ERRNO | ENOSYS),
            (ARCHITECTURE, X32, 0, 0, allow),
            (ARCHITECTURE, X32 | 512, 0, 7, allow),
            (ARCHITECTURE, X32 | 13, 0, 7, eperm),
            (ARCHITECTURE, X32 | 463, 0, 0, eperm),
            (ARCHITECTURE, X32 | 513, 0, 0, SECCOMP_RET_ERRNO | ENOSYS),
            (0xc000_00b7, 0, 0, 0, SECCOMP_RET_KILL_PROCESS),
        ] {
            let result = run(&filter, arch, call, [first, second, 0, 0, 0, 0]);
            assert_eq!(result, expected, "{arch:#x} {call:#x} {first} {second}");
        }
        // Through socketcall, i386 would make what the rule for socket denies.
        profile.syscalls.remove(0);
        assert!(compile(&profile).is_none());
    }

    #[test]
    fn a_profile_of_another_shape_is_left_to_the_runtime() {
        use serde_json::json;
        let rejected = |rules| compile(&profile(rules)).is_none();
        assert!(rejected(
            json!([{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}])
        ));
        assert!(rejected(json!([{"names": ["read"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_GT"}]}])));
        assert!(rejected(json!([{"names": ["read"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["read"], "action": "SCMP_ACT_ERRNO"}])));
        assert!(rejected(json!([{"names": ["read"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]}])));
        let mut lax = profile(json!([]));
        lax.default_action = "SCMP_ACT_ALLOW".into();
        assert!(compile(&lax).is_none());
    }
}
