//! A seccomp profile as a filter of the kernel (classic BPF).
//!
//! It covers profiles that deny by default with an errno and whose rules compare arguments for equality, as the default
//! profile of containerd; other profiles are left to the OCI runtime. Only this architecture's own system calls get
//! through: a call of another architecture (32 bit, x32) kills the process, as libseccomp does with architectures that a
//! profile does not name. The sandbox's program is a static program of this architecture.

use nix::libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, sock_filter,
};

use super::config::{Argument, Rule, Seccomp};
use super::syscalls::{ARCHITECTURE, number};

/// The kernel's limit of a filter (BPF_MAXINSNS).
const MAX_INSTRUCTIONS: usize = 4096;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;
/// System calls of x32 begin here.
const X32: u32 = 0x4000_0000;
/// The errno of a denied system call unless the profile has another.
const EPERM: u16 = 1;
/// errno is below this (include/linux/err.h).
const MAX_ERRNO: u16 = 4095;
const MAX_ARGUMENT: u8 = 5;

/// What a comparison needs: the argument, masked, has this value.
struct Comparison {
    index: u8,
    mask: u64,
    value: u64,
}

/// The filter; none if the profile has something that is not translated exactly.
pub fn compile(profile: &Seccomp) -> Option<Vec<sock_filter>> {
    let named = |name: &String| name.starts_with("SCMP_ARCH_");
    if ARCHITECTURE == 0
        || profile.default_action != "SCMP_ACT_ERRNO"
        || !profile.architectures.iter().all(named)
    {
        return None;
    }
    let default = errno(profile.default_errno)?;
    let mut filter = vec![
        load(ARCH),
        jump(BPF_JEQ, ARCHITECTURE, 1, 0),
        ret(SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
        jump(BPF_JGE, X32, 0, 1),
        ret(SECCOMP_RET_KILL_PROCESS),
    ];
    let plain = |rule: &&Rule| rule.args.is_empty();
    let mut decided = std::collections::BTreeMap::new();
    for rule in &profile.syscalls {
        let result = action(rule)?;
        for call in rule.names.iter().filter_map(|name| number(name)) {
            // Which of two actions counts depends on libseccomp's optimizer.
            if *decided.entry(call).or_insert(result) != result {
                return None;
            }
        }
    }
    for rule in profile.syscalls.iter().filter(plain) {
        let result = action(rule)?;
        for call in rule.names.iter().filter_map(|name| number(name)) {
            filter.extend([jump(BPF_JEQ, call, 0, 1), ret(result)]);
        }
    }
    for rule in profile.syscalls.iter().filter(|rule| !plain(rule)) {
        let result = action(rule)?;
        let comparisons: Vec<Comparison> = rule.args.iter().map(comparison).collect::<Option<_>>()?;
        let mut indexes: Vec<u8> = comparisons.iter().map(|comparison| comparison.index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        if indexes.len() != comparisons.len() {
            return None;
        }
        for call in rule.names.iter().filter_map(|name| number(name)) {
            filter.extend(conditional(call, &comparisons, result)?);
        }
    }
    filter.push(ret(default));
    (filter.len() <= MAX_INSTRUCTIONS).then_some(filter)
}

/// The instructions of a rule with comparisons; what follows them is reached if one does not hold.
fn conditional(call: u32, comparisons: &[Comparison], result: u32) -> Option<Vec<sock_filter>> {
    // Six for each comparison, and the return.
    let body = comparisons.len() * 6 + 1;
    let mut filter = vec![load(NUMBER), jump(BPF_JEQ, call, 0, u8::try_from(body).ok()?)];
    let mut left = body;
    for comparison in comparisons {
        // Both halves; little-endian as on all architectures with numbers here.
        let at = ARGUMENTS + u32::from(comparison.index) * 8;
        for (offset, shift) in [(at, 0), (at + 4, 32)] {
            let half = |value: u64| ((value >> shift) & u64::from(u32::MAX)) as u32;
            left -= 3;
            filter.extend([
                load(offset),
                sock_filter {
                    code: (BPF_ALU | BPF_AND | BPF_K) as u16,
                    jt: 0,
                    jf: 0,
                    k: half(comparison.mask),
                },
                jump(BPF_JEQ, half(comparison.value), 0, u8::try_from(left).ok()?),
            ]);
        }
    }
    filter.push(ret(result));
    Some(filter)
}

fn comparison(argument: &Argument) -> Option<Comparison> {
    let (mask, value) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (u64::MAX, argument.value),
        // The first value is the mask.
        "SCMP_CMP_MASKED_EQ" => (argument.value, argument.value_two),
        _ => return None,
    };
    (argument.index <= MAX_ARGUMENT && value & mask == value).then_some(Comparison {
        index: argument.index,
        mask,
        value,
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
        ] {
            assert_eq!(ask(name, first), expected, "{name} {first:#x}");
        }
        let kill = SECCOMP_RET_KILL_PROCESS;
        assert_eq!(run(&filter, 0x4000_0003, 3, [0; 6]), kill, "i386");
        assert_eq!(run(&filter, ARCHITECTURE, X32, [0; 6]), kill, "x32");
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
