//! The command line of a shim (containerd's `runtime/v2/README.md`), in the style of Go's `flag` package: `-id x`,
//! `--id x`, `-id=x`; the action is last.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::CommandError;

/// Longest id that containerd allows (package `identifiers`).
const MAX_ID_BYTES: usize = 76;

/// What containerd asks of this process.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Make sure that a shim serves this container, and print its address.
    Start,
    /// Clean up after a shim that is gone, and report its container's exit.
    Delete,
    /// Print the version.
    Version,
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub action: Action,
    pub namespace: String,
    pub id: String,
    /// containerd's gRPC socket. It only makes the shim's own address unique.
    pub containerd: String,
    /// `delete` only; the working directory unless given.
    pub bundle: Option<PathBuf>,
    pub debug: bool,
}

impl Arguments {
    pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self, CommandError> {
        let mut parsed = Arguments {
            action: Action::Version,
            namespace: String::new(),
            id: String::new(),
            containerd: String::new(),
            bundle: None,
            debug: false,
        };
        let mut action = None;
        let mut arguments = arguments.map(|argument| {
            argument
                .into_string()
                .map_err(|argument| CommandError::Argument(argument.to_string_lossy().into_owned()))
        });
        while let Some(argument) = arguments.next().transpose()? {
            let Some(flag) = argument.strip_prefix('-') else {
                action = Some(argument);
                break;
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            match name {
                "debug" => parsed.debug = value.is_none_or(|value| value == "true"),
                "v" => return Ok(parsed),
                _ => {
                    let value = match value {
                        Some(value) => value,
                        None => arguments
                            .next()
                            .transpose()?
                            .ok_or_else(|| CommandError::Argument(argument.clone()))?,
                    };
                    match name {
                        "namespace" => parsed.namespace = value,
                        "id" => parsed.id = value,
                        "address" => parsed.containerd = value,
                        "bundle" => parsed.bundle = Some(value.into()),
                        // What Go's shim has and this one has no use for.
                        "publish-binary" | "socket" => {}
                        _ => return Err(CommandError::Argument(argument)),
                    }
                }
            }
        }
        parsed.action = match action.as_deref() {
            Some("start") => Action::Start,
            Some("delete") => Action::Delete,
            other => return Err(CommandError::Action(other.unwrap_or_default().to_owned())),
        };
        for (flag, value) in [("-namespace", &parsed.namespace), ("-id", &parsed.id)] {
            if !is_identifier(value) {
                return Err(CommandError::Identifier {
                    flag,
                    value: value.clone(),
                });
            }
        }
        Ok(parsed)
    }
}

/// What containerd allows as the id of a container, an exec or a namespace: it is used as a file name.
pub fn is_identifier(id: &str) -> bool {
    let alphanumeric = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let bytes = id.as_bytes();
    bytes.len() <= MAX_ID_BYTES
        && alphanumeric(bytes.first().copied())
        && alphanumeric(bytes.last().copied())
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, CommandError> {
        Arguments::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn containerds_command_lines_are_understood_in_every_spelling_of_flags() {
        let start =
            parse("-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id a start")
                .unwrap();
        assert_eq!(
            (
                start.action,
                start.namespace.as_str(),
                start.id.as_str(),
                start.containerd.as_str()
            ),
            (Action::Start, "k8s.io", "a", "/run/c.sock")
        );
        let delete = parse("--namespace=default --id=b -bundle /b -debug delete").unwrap();
        assert_eq!(delete.action, Action::Delete);
        assert_eq!(delete.bundle, Some(PathBuf::from("/b")));
        assert!(delete.debug);
        assert_eq!(parse("-v").unwrap().action, Action::Version);
    }

    #[test]
    fn a_line_without_action_or_with_an_id_that_is_no_file_name_is_rejected() {
        for line in [
            "-namespace n -id a",
            "-namespace n -id a serve",
            "-namespace n -id ../a start",
            "-namespace n -id .. start",
            "-namespace n start",
            "-id a start",
            "-namespace n -id",
            "-unknown x -namespace n -id a start",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(!is_identifier(&"a".repeat(77)));
        assert!(is_identifier(&"a".repeat(76)));
        assert!(!is_identifier("a/b") && !is_identifier("a-") && !is_identifier(""));
    }
}
