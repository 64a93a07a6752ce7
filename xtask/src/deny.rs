//! The dependencies that are allowed: the sections bans, licenses and sources of `deny.toml`, as cargo-deny reads them.
//!
//! Building cargo-deny takes minutes, more than all other checks together. We use few keys of its file; any other key is an
//! error here, so that every line of the file has an effect. Advisories need cargo-deny's database and are not checked here.

use std::path::Path;

use cargo_metadata::{DependencyKind, Metadata, Package};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    /// Two versions of one crate; only `allow` is supported.
    multiple_versions: Allow,
    /// Dependencies of our crates on any version (`*`).
    wildcards: Deny,
    /// Crates of the workspace depend on each other without a version.
    allow_wildcard_paths: bool,
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Deny,
    unknown_git: Deny,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Allow {
    Allow,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Deny {
    Deny,
}

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Violations of the policy by any package of the lock file, for all platforms and features.
pub fn check(metadata: &Metadata, file: &Path) -> Vec<String> {
    let policy = std::fs::read_to_string(file)
        .map_err(|e| e.to_string())
        .and_then(|text| toml::from_str::<Policy>(&text).map_err(|e| e.to_string()));
    let policy = match policy {
        Ok(policy) => policy,
        Err(e) => return vec![format!("{}: {e}", file.display())],
    };
    let Policy {
        licenses,
        bans:
            Bans {
                multiple_versions: Allow::Allow,
                wildcards: Deny::Deny,
                allow_wildcard_paths,
                deny,
            },
        sources:
            Sources {
                unknown_registry: Deny::Deny,
                unknown_git: Deny::Deny,
            },
    } = policy;
    let allowed: Result<Vec<Licensee>, String> = licenses
        .allow
        .iter()
        .map(|id| Licensee::parse(id).map_err(|e| format!("deny.toml: {id:?} is not a license: {e}")))
        .collect();
    let allowed = match allowed {
        Ok(allowed) => allowed,
        Err(e) => return vec![e],
    };
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let name = format!("{} {}", package.name, package.version);
        if let Some(source) = &package.source
            && source.repr != CRATES_IO
        {
            violations.push(format!("{name} is from {source}, expected crates.io"));
        }
        if deny.iter().any(|banned| banned.name == package.name.as_str()) {
            violations.push(format!("{name} is banned by deny.toml"));
        }
        if let Err(why) = license(package.license.as_deref(), &allowed) {
            violations.push(format!("{name}: {why}"));
        }
    }
    for package in metadata.workspace_packages() {
        violations.extend(wildcards(package, allow_wildcard_paths));
    }
    violations
}

fn license(declared: Option<&str>, allowed: &[Licensee]) -> Result<(), String> {
    let declared = declared.ok_or("it declares no license")?;
    // Old crates write `MIT/Apache-2.0`.
    let expression =
        Expression::parse_mode(declared, ParseMode::LAX).map_err(|e| format!("license {declared:?}: {e}"))?;
    match expression.evaluate(|required| allowed.iter().any(|licensee| licensee.satisfies(required))) {
        true => Ok(()),
        false => Err(format!("its license {declared:?} is not allowed by deny.toml")),
    }
}

fn wildcards(package: &Package, allow_paths: bool) -> Vec<String> {
    let any = package
        .dependencies
        .iter()
        .filter(|d| d.req.comparators.is_empty());
    any.filter(|d| !(allow_paths && d.path.is_some()))
        .map(|d| {
            let kind = match d.kind {
                DependencyKind::Development => "dev-dependency",
                _ => "dependency",
            };
            format!(
                "{}: its {kind} {} has no version requirement",
                package.name, d.name
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_license_is_allowed_when_one_alternative_is() {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "ISC"];
        let allowed = allowed.map(|id| Licensee::parse(id).unwrap());
        for (declared, good) in [
            ("MIT", true),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/GPL-3.0", true),
            ("MIT AND ISC", true),
            ("MIT AND GPL-3.0-only", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("GPL-3.0-only", false),
            ("mine", false),
        ] {
            let found = license(Some(declared), &allowed);
            assert_eq!(found.is_ok(), good, "{declared}: {found:?}");
        }
        assert!(license(None, &allowed).is_err());
    }

    #[test]
    fn a_policy_with_an_unsupported_key_is_an_error() {
        let text = include_str!("../../deny.toml");
        assert!(toml::from_str::<Policy>(text).is_ok());
        for change in [
            ("multiple-versions = \"allow\"", "multiple-versions = \"deny\""),
            ("unknown-git = \"deny\"", "unknown-git = \"warn\""),
            ("[sources]", "[sources]\nallow-git = []"),
            ("crate = \"rsa\"", "crate = \"rsa\", reason = \"old\""),
        ] {
            let other = text.replace(change.0, change.1);
            assert_ne!(text, other, "{change:?}");
            assert!(toml::from_str::<Policy>(&other).is_err(), "{change:?}");
        }
    }
}
