//! The demo image's `wget`: busybox 1.35, which is Debian 12's, crashes when `-T` is given.
//!
//! Its shell prefers its own applets to programs in `PATH`, so a script of the same name would not be found. The applet
//! is renamed to a name of the same length at its place in the sorted table, and a script with the old name calls it.

/// What calls the applet by its other name.
pub const SCRIPT: &str = include_str!("wget.sh");
/// The versions that crash contain this string.
const VERSION: &[u8] = b"BusyBox v1.35.";
const TABLE: &[u8] = b"\0wc\0wget\0which\0";
/// Sorted between the same neighbours.
const RENAMED: &[u8] = b"\0wc\0wgeT\0which\0";

/// Gives the applet its other name, if this program's crashes. False if it does not, or if it is not where it is expected:
/// then nothing is changed.
pub fn rename_applet(program: &mut [u8]) -> bool {
    let find = |what: &[u8]| program.windows(what.len()).position(|w| w == what);
    let Some(at) = find(VERSION).and_then(|_| find(TABLE)) else {
        return false;
    };
    match program.get_mut(at..at + RENAMED.len()) {
        Some(place) => {
            place.copy_from_slice(RENAMED);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_that_crashes_has_its_applet_renamed() {
        let mut crashes = b"..BusyBox v1.35.0 (Debian)..\0watchdog\0wc\0wget\0which\0who\0".to_vec();
        assert!(rename_applet(&mut crashes));
        assert_eq!(
            crashes,
            b"..BusyBox v1.35.0 (Debian)..\0watchdog\0wc\0wgeT\0which\0who\0"
        );
        assert!(!rename_applet(&mut crashes), "once");
        for other in [
            &b"..BusyBox v1.37.0..\0wc\0wget\0which\0"[..],
            &b"..BusyBox v1.35.0..\0wc\0wget\0whois\0"[..],
            &b""[..],
        ] {
            let mut program = other.to_vec();
            assert!(!rename_applet(&mut program));
            assert_eq!(program, other);
        }
        let names: Vec<&[u8]> = RENAMED.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
        assert!(names.is_sorted(), "the table is searched by halves");
    }
}
