//! The checksum of the kubelet's checkpoints.

/// FNV-1a in 32 bits.
pub fn fnv32a(text: &str) -> u32 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    text.bytes()
        .fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}
