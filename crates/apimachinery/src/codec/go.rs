//! Go's error for invalid base64.

/// Go's error for invalid standard base64, with its offset: the byte, or the beginning of an incomplete group.
pub(super) fn base64_error(text: &str) -> String {
    let symbol = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    let data = text.trim_end_matches('=');
    let at = match data.bytes().position(|c| !symbol(c)) {
        Some(at) => at,
        None if text.len().is_multiple_of(4) && text.len() - data.len() > 2 => data.len(),
        None => (text.len() / 4 * 4).min(data.len() / 4 * 4),
    };
    format!("illegal base64 data at input byte {at}")
}
