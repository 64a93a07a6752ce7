//! Mutates seeds, deterministically for a random seed: the inputs of the test, which runs without libFuzzer.

/// Texts that have a meaning in one of the formats.
const TOKENS: &[&str] = &[
    "null",
    "{}",
    "[]",
    "\"\"",
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "1e-999",
    "true",
    "\\u0000",
    "\\ud800",
    "\"a\":1,\"a\":2",
    "[[[[[[[[",
    "{\"\":",
    "/-",
    "/0",
    "~1",
    "~0",
    "~2",
    "$patch",
    "replace",
    "$deleteFromPrimitiveList/x",
    "$setElementOrder/x",
    "$retainKeys",
    "k:{",
    "v:",
    "i:-1",
    "f:",
    "\u{1e}",
    "\u{feff}",
    "ß",
    "\u{10ffff}",
    "*",
    "..",
    "%2f",
    "%",
    "&",
    "=",
    ",",
    "!",
    "(",
    ")",
    " in ",
    "Ei",
    "m",
    "@every 1ns",
    "metadata",
    "name",
    "spec",
    "status",
    "containers",
    "labels",
    "size",
    "self",
    ".map(x, ",
    "\n",
    "\t- ",
    ": ",
    "&a ",
    "*a",
    "'",
    "\"",
    "\\",
];

/// The random number generator xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number less than `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// `seed` with one to four changes; some copy a part of `other`.
pub fn mutated(random: &mut Random, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        let end = at + random.below((input.len() - at).min(40) + 1);
        match random.below(8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => {
                let part = input[at..end].to_vec();
                drop(input.splice(at..at, part));
            }
            3 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            4 => {
                let from = random.below(other.len() + 1);
                let to = from + random.below((other.len() - from).min(60) + 1);
                drop(input.splice(at..end, other[from..to].iter().copied()));
            }
            5 => {
                // Replaces the value behind a colon, as in JSON.
                let token = TOKENS[random.below(TOKENS.len())];
                let start = input
                    .iter()
                    .skip(at)
                    .position(|b| *b == b':')
                    .map_or(at, |more| at + more + 1);
                let stop = input
                    .iter()
                    .skip(start)
                    .position(|b| b",}]".contains(b))
                    .map_or(input.len(), |more| start + more);
                drop(input.splice(start..stop, token.bytes()));
            }
            _ => {
                let token = TOKENS[random.below(TOKENS.len())];
                drop(input.splice(at..at, token.bytes()));
            }
        }
    }
    input
}
