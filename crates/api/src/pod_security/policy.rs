//! What a namespace's labels ask for: a level and a version each for what is refused, noted and warned of.

use std::collections::BTreeMap;
use std::fmt;

use crate::field::{Errors, Path};

/// How the labels begin: `pod-security.kubernetes.io/enforce`, `…/enforce-version`.
pub const LABELS: &str = "pod-security.kubernetes.io/";

/// From lax to strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        })
    }
}

/// The version of Kubernetes whose rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    Latest,
    /// Of 1.x.
    Minor(u32),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Latest => f.write_str("latest"),
            Version::Minor(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// A level as it was at a version: `restricted:latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// What is done about pods in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What does not pass is refused.
    pub enforce: LevelVersion,
    /// What does not pass is noted in the audit log.
    pub audit: LevelVersion,
    /// Of what does not pass its author is warned.
    pub warn: LevelVersion,
}

impl Default for Policy {
    fn default() -> Self {
        let anything = LevelVersion {
            level: Level::Privileged,
            version: Version::Latest,
        };
        Policy {
            enforce: anything,
            audit: anything,
            warn: anything,
        }
    }
}

impl Policy {
    /// What the labels ask for, and what is wrong with them. What cannot be read is enforced as `restricted`, and neither
    /// noted nor warned of.
    pub fn of(labels: Option<&BTreeMap<String, String>>) -> (Self, Errors) {
        let mut policy = Policy::default();
        let mut errors = Errors::new();
        let Some(labels) = labels else {
            return (policy, errors);
        };
        let path = Path::new("metadata").child("labels");
        let mut read = |mode: &str, unreadable: Level, into: &mut LevelVersion| -> (Option<Level>, bool) {
            let mut named = None;
            let label = format!("{LABELS}{mode}");
            if let Some(value) = labels.get(&label) {
                named = level(value);
                into.level = named.unwrap_or(unreadable);
                if named.is_none() {
                    errors.invalid(
                        &path.key(&label),
                        value,
                        "must be one of privileged, baseline, restricted",
                    );
                }
            }
            let label = format!("{LABELS}{mode}-version");
            let text = labels.get(&label);
            if let Some(value) = text {
                let given = version(value);
                into.version = given.unwrap_or(Version::Latest);
                if given.is_none() {
                    errors.invalid(&path.key(&label), value, "must be \"latest\" or \"v1.x\"");
                }
            }
            (named, text.is_some())
        };
        let (enforced, _) = read("enforce", Level::Restricted, &mut policy.enforce);
        read("audit", Level::Privileged, &mut policy.audit);
        let (_, warns_of_version) = read("warn", Level::Privileged, &mut policy.warn);
        // Who enforces is warned of the same where nothing is said: of pod templates, which are not refused.
        if !labels.contains_key(&format!("{LABELS}warn"))
            && enforced.is_some_and(|enforced| enforced > policy.warn.level)
        {
            policy.warn.level = policy.enforce.level;
            if !warns_of_version {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }
}

fn level(text: &str) -> Option<Level> {
    let all = [Level::Privileged, Level::Baseline, Level::Restricted];
    all.into_iter().find(|level| level.to_string() == text)
}

fn version(text: &str) -> Option<Version> {
    if text == "latest" {
        return Some(Version::Latest);
    }
    let digits = text.strip_prefix("v1.")?;
    let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| canonical).map(Version::Minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_versions_must_be_known() {
        for (label, value, fine) in [
            ("enforce", "baseline", true),
            ("warn", "foo", false),
            ("audit", "", false),
            ("enforce-version", "latest", true),
            ("enforce-version", "v1.30", true),
            ("enforce-version", "v1.0", true),
            ("warn-version", "v1.03", false),
            ("warn-version", "v1.+3", false),
            ("warn-version", "v1.", false),
            ("audit-version", "1.30", false),
            ("other", "x", true),
        ] {
            let labels = BTreeMap::from([(format!("{LABELS}{label}"), value.to_string())]);
            assert_eq!(Policy::of(Some(&labels)).1.is_empty(), fine, "{label}={value}");
        }
    }

    #[test]
    fn what_is_enforced_is_warned_of_where_nothing_else_is_said() {
        for (labels, enforce, warn, audit) in [
            (
                &[][..],
                "privileged:latest",
                "privileged:latest",
                "privileged:latest",
            ),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.20")][..],
                "baseline:v1.20",
                "baseline:v1.20",
                "privileged:latest",
            ),
            (
                &[("enforce", "restricted"), ("warn-version", "v1.30")],
                "restricted:latest",
                "restricted:v1.30",
                "privileged:latest",
            ),
            (
                &[
                    ("enforce", "restricted"),
                    ("warn", "baseline"),
                    ("audit", "restricted"),
                ],
                "restricted:latest",
                "baseline:latest",
                "restricted:latest",
            ),
            (
                &[("enforce", "no"), ("warn", "no"), ("audit", "no")],
                "restricted:latest",
                "privileged:latest",
                "privileged:latest",
            ),
        ] {
            let labels = labels
                .iter()
                .map(|(k, v)| (format!("{LABELS}{k}"), (*v).to_string()))
                .collect();
            let (policy, _) = Policy::of(Some(&labels));
            let found = [policy.enforce, policy.warn, policy.audit].map(|l| l.to_string());
            assert_eq!(found, [enforce, warn, audit], "{labels:?}");
        }
    }
}
