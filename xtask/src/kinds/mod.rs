//! `cargo run -p xtask -- kinds DIR`: the descriptors of Kubernetes' types, from the source tree of one of its versions.
//!
//! It reads the Go types (names, JSON tags, embedding, order), `generated.proto` (the numbers of fields) and the published OpenAPI v3
//! documents (list and map types, merge keys, required fields), adds what is in Kubernetes' validation only (`facts.txt`), and writes
//! `crates/apimachinery/src/descriptors/kubernetes.txt`, whose form that module explains. What changed is printed, a line a type or field: moving
//! to another version is to review that.

mod difference;
mod go;
mod published;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value};

use crate::Report;
use go::{Definition, Field, Package, Text, Type};
use published::Messages;

/// Where the descriptors are.
const OUTPUT: &str = "crates/apimachinery/src/descriptors/kubernetes.txt";

/// What validation requires of fields, by type and field.
const FACTS: &str = include_str!("facts.txt");

/// Packages in addition to those of `k8s.io/api`: name, import path.
const PACKAGES: &[(&str, &str)] = &[
    ("meta/v1", "k8s.io/apimachinery/pkg/apis/meta/v1"),
    ("resource", "k8s.io/apimachinery/pkg/api/resource"),
    ("intstr", "k8s.io/apimachinery/pkg/util/intstr"),
    ("runtime", "k8s.io/apimachinery/pkg/runtime"),
    ("types", "k8s.io/apimachinery/pkg/types"),
    (
        "apiextensions/v1",
        "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
    ),
    (
        "apiregistration/v1",
        "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
    ),
];

/// Types with a JSON form of their own (`MarshalJSON`), which their fields do not show.
const FORMS: &[(&str, &str)] = &[
    ("apiextensions/v1.JSON", "json"),
    ("intstr.IntOrString", "int-or-string"),
    ("meta/v1.Duration", "duration"),
    ("meta/v1.FieldsV1", "json"),
    ("meta/v1.MicroTime", "microtime"),
    ("meta/v1.Time", "time"),
    ("resource.Quantity", "quantity"),
    ("runtime.RawExtension", "json"),
];

/// Internal types that Kubernetes' messages show; they and the types below them are described, too.
const SHOWN: &[&str] = &[
    "core.EphemeralContainer",
    "core.EventSource",
    "core.NodeSelectorTerm",
    "core.PersistentVolumeClaimSpec",
    "core.PersistentVolumeSource",
    "core.PodTemplateSpec",
    "core.VolumeNodeAffinity",
    "batch.PodFailurePolicy",
    "batch.SuccessPolicy",
    "networking.ParentReference",
    "resource.ResourceClaimSpec",
    "resource.ResourceClaimTemplateSpec",
    "storage.CSINodeDriver",
    "storage.VolumeAttachmentSpec",
];

/// Writes the descriptors from the source tree of Kubernetes in `source`, and reports how they differ from the present ones.
pub fn write(root: &Path, source: &Path) -> Report {
    let text = match Sources::read(source).map(|sources| sources.text()) {
        Ok(text) => text,
        Err(violation) => {
            return Report {
                violations: vec![violation],
                ..Report::default()
            };
        }
    };
    let output = root.join(OUTPUT);
    let before = std::fs::read_to_string(&output).unwrap_or_default();
    let mut report = Report {
        checked: format!("{} lines in {OUTPUT}", text.lines().count()),
        notes: difference::between(&before, &text),
        ..Report::default()
    };
    if let Err(e) = std::fs::write(&output, text) {
        report.violations.push(format!("{OUTPUT}: {e}"));
    }
    report
}

/// What was read of a version of Kubernetes.
struct Sources {
    /// By name: `core/v1`, `internal/core`.
    packages: BTreeMap<String, Package>,
    /// The beginning of a package's names in OpenAPI, by package: `io.k8s.api.core.v1`.
    published: BTreeMap<String, String>,
    messages: BTreeMap<String, Messages>,
    schemas: Map<String, Value>,
}

impl Sources {
    fn read(source: &Path) -> Result<Sources, String> {
        let staging = source.join("staging/src");
        let mut directories = BTreeMap::new();
        for (name, path) in versions(&staging.join("k8s.io/api"))? {
            directories.insert(
                format!("k8s.io/api/{path}"),
                (name, staging.join("k8s.io/api").join(path)),
            );
        }
        for (name, path) in PACKAGES {
            directories.insert((*path).to_string(), ((*name).to_string(), staging.join(path)));
        }
        for name in SHOWN.iter().filter_map(|of| of.split('.').next()) {
            let path = format!("pkg/apis/{name}");
            let directory = source.join(&path);
            directories.insert(
                format!("k8s.io/kubernetes/{path}"),
                (format!("internal/{name}"), directory),
            );
        }
        let names = directories
            .iter()
            .map(|(path, (name, _))| (path.clone(), name.clone()))
            .collect();
        let mut sources = Sources {
            packages: BTreeMap::new(),
            published: BTreeMap::new(),
            messages: BTreeMap::new(),
            schemas: published::schemas(&source.join("api/openapi-spec/v3"))?,
        };
        for (path, (name, directory)) in directories {
            let package =
                go::read(&directory, &names).map_err(|e| format!("{}: {e}", directory.display()))?;
            let messages = std::fs::read_to_string(directory.join("generated.proto")).unwrap_or_default();
            sources
                .messages
                .insert(name.clone(), published::messages(&messages));
            sources.published.insert(name.clone(), published_name(&path));
            sources.packages.insert(name, package);
        }
        Ok(sources)
    }

    /// The descriptors' file.
    fn text(&self) -> String {
        let mut out = String::from(
            "# The types of Kubernetes, by `cargo run -p xtask -- kinds DIR`. The module's documentation explains the form.\n",
        );
        let mut package = "";
        for name in self.described() {
            let Some((of_package, own)) = name.rsplit_once('.') else {
                continue;
            };
            if of_package != package {
                let (kept, _) = name.split_at(of_package.len());
                let published = &self.published[of_package];
                // Writing to a String cannot fail.
                let _ = writeln!(out, "package {kept} {published}");
            }
            package = self
                .packages
                .get_key_value(of_package)
                .map_or("", |(known, _)| known);
            if let Some(described) = self.type_of(&name) {
                self.write_type(&mut out, package, own, described);
            }
        }
        out
    }

    /// The types with a message or a schema, the internal types of messages, and all that they refer to.
    fn described(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut next: Vec<String> = SHOWN.iter().map(|of| format!("internal/{of}")).collect();
        for (package, of_package) in &self.packages {
            for name in of_package.types.keys() {
                let has_message = self.messages[package].contains_key(name);
                let is_versioned = package.contains('/') && !package.starts_with("internal/");
                if is_versioned && (has_message || self.schema(package, name).is_some()) {
                    next.push(format!("{package}.{name}"));
                }
            }
        }
        while let Some(name) = next.pop() {
            let Some(of) = self.type_of(&name) else {
                continue;
            };
            if !found.insert(name.clone()) || form(&name).is_some() {
                continue;
            }
            let package = name.rsplit_once('.').map_or("", |(package, _)| package);
            match &of.definition {
                Definition::Named(of) => next.extend(referred(package, of)),
                Definition::Struct(fields) => {
                    next.extend(fields.iter().flat_map(|f| referred(package, &f.of)))
                }
            }
        }
        found
    }

    fn type_of(&self, name: &str) -> Option<&Type> {
        let (package, name) = name.rsplit_once('.')?;
        self.packages.get(package)?.types.get(name)
    }

    fn schema(&self, package: &str, name: &str) -> Option<&Value> {
        self.schemas.get(&format!("{}.{name}", self.published[package]))
    }

    /// The schema that has a type's fields: its own, or for an embedded struct that of a type that embeds it.
    fn schema_of_fields(&self, package: &str, name: &str) -> Option<&Value> {
        let embeds = |of: &Type| match &of.definition {
            Definition::Struct(fields) => fields.iter().any(|f| f.is_embedded && f.of == name),
            Definition::Named(_) => false,
        };
        self.schema(package, name).or_else(|| {
            let types = self.packages[package].types.iter();
            let mut outer = types.filter(|(_, of)| embeds(of));
            outer.find_map(|(outer, _)| self.schema_of_fields(package, outer))
        })
    }

    /// The values of an enum, in order and with `_` for a space.
    fn values(&self, package: &str, name: &str) -> Vec<String> {
        let constants = self.packages[package].constants.values();
        let values = constants
            .filter(|c| c.of == name)
            .filter_map(|c| self.text_of(&c.value));
        let values: BTreeSet<String> = values.map(|value| value.replace(' ', "_")).collect();
        values.into_iter().collect()
    }

    fn text_of(&self, value: &Text) -> Option<String> {
        match value {
            Text::Literal(text) => Some(text.clone()),
            Text::Constant(name) => {
                let (package, name) = name.rsplit_once('.')?;
                self.text_of(&self.packages.get(package)?.constants.get(name)?.value)
            }
        }
    }

    fn write_type(&self, out: &mut String, package: &str, name: &str, of: &Type) {
        out.push_str(name);
        if let Some(form) = form(&format!("{package}.{name}")) {
            let _ = writeln!(out, " ={form}");
            return;
        }
        let message = self.messages[package].get(name);
        match &of.definition {
            Definition::Named(named) => {
                let _ = write!(out, " ={named}");
                if message.is_some() {
                    out.push_str(" message");
                }
                if of.is_enum {
                    let _ = write!(out, " enum={}", self.values(package, name).join(","));
                }
                out.push('\n');
            }
            Definition::Struct(fields) => {
                if self
                    .schema(package, name)
                    .is_some_and(|s| s["x-kubernetes-map-type"] == "atomic")
                {
                    out.push_str(" map=atomic");
                }
                if package.contains("/v") && fields.iter().any(|f| f.json.is_none() && !f.is_embedded) {
                    out.push_str(" either");
                }
                if message.is_some() {
                    out.push_str(" message");
                }
                out.push('\n');
                let schema = self.schema_of_fields(package, name);
                for field in fields {
                    self.write_field(out, (package, name), message, schema, field);
                }
            }
        }
    }

    fn write_field(
        &self,
        out: &mut String,
        of: (&str, &str),
        message: Option<&BTreeMap<String, u32>>,
        schema: Option<&Value>,
        field: &Field,
    ) {
        let tags: &[String] = field.json.as_deref().unwrap_or_default();
        let json = tags.first().map_or("", String::as_str);
        let is_inline = tags.iter().any(|tag| tag == "inline") || (field.is_embedded && json.is_empty());
        let declared = field.proto_name.as_deref().unwrap_or(json);
        let own = first_lower(&field.name);
        let proto = if declared.is_empty() {
            own.as_str()
        } else {
            declared
        };
        let name = match (is_inline, json) {
            (true, _) => "^".to_string(),
            // Internal types have no tags, and their fields the names that the versioned ones have.
            (false, "") if field.json.is_none() => match self.versioned_name(of, &field.name) {
                Some(name) => name,
                None => proto.to_string(),
            },
            (false, json) => json.to_string(),
        };
        let number = message.and_then(|m| m.get(proto));
        let number = number.map_or_else(|| "-".to_string(), u32::to_string);
        let go_name = match is_inline || first_upper(&name) == field.name {
            true => String::new(),
            false => format!("={}", field.name),
        };
        let _ = write!(out, " {name}{go_name} {} {number}", field.of);
        for option in tags
            .iter()
            .skip(1)
            .filter(|tag| ["omitempty", "omitzero"].contains(&tag.as_str()))
        {
            let _ = write!(out, " {option}");
        }
        if let Some(schema) = schema.filter(|_| !is_inline) {
            write_schema(out, schema, json);
        }
        if let Some(facts) = facts(of, &name) {
            let _ = write!(out, " facts={facts}");
        }
        out.push('\n');
    }

    /// The JSON name of an internal type's field: that of the versioned type's field of the same name.
    fn versioned_name(&self, (package, of): (&str, &str), field: &str) -> Option<String> {
        let group = package.strip_prefix("internal/")?;
        let types = &self.packages.get(&format!("{group}/v1"))?.types;
        let in_type = |of: &str| match &types.get(of)?.definition {
            Definition::Struct(fields) => fields
                .iter()
                .find(|f| f.name == field)?
                .json
                .as_ref()?
                .first()
                .cloned(),
            Definition::Named(_) => None,
        };
        in_type(of)
    }
}

/// What validation requires of a field by itself.
fn facts((package, of): (&str, &str), field: &str) -> Option<&'static str> {
    let key = format!("{package}.{of}.{field} ");
    FACTS.lines().find_map(|line| line.strip_prefix(key.as_str()))
}

/// The attributes that the published schema gives a field.
fn write_schema(out: &mut String, schema: &Value, json: &str) {
    if schema["required"]
        .as_array()
        .is_some_and(|required| required.iter().any(|r| r == json))
    {
        out.push_str(" required");
    }
    let field = &schema["properties"][json];
    let text = |name: &str| field[format!("x-kubernetes-{name}")].as_str();
    match text("list-type") {
        Some("map") => {
            let keys = field["x-kubernetes-list-map-keys"].as_array();
            let keys: Vec<&str> = keys.into_iter().flatten().filter_map(Value::as_str).collect();
            let _ = write!(out, " list=map:{}", keys.join(","));
        }
        Some(list) => {
            let _ = write!(out, " list={list}");
        }
        None => {}
    }
    for (attribute, name) in [
        ("map", "map-type"),
        ("patch", "patch-strategy"),
        ("key", "patch-merge-key"),
    ] {
        if let Some(value) = text(name) {
            let _ = write!(out, " {attribute}={value}");
        }
    }
    // That of every field that Go always writes is the zero value.
    let default = &field["default"];
    let zero = [Value::Null, "".into(), 0.into(), 0.0.into(), false.into()];
    if !default.is_object() && !default.is_array() && !zero.contains(default) {
        let _ = write!(out, " default={default}");
    }
}

/// The stable versions of `k8s.io/api`: name and directory, `core/v1`.
fn versions(api: &Path) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for group in directories(api)? {
        for version in directories(&api.join(&group))? {
            let number = version.strip_prefix('v').unwrap_or_default();
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
                let name = format!("{group}/{version}");
                found.push((name.clone(), name));
            }
        }
    }
    Ok(found)
}

fn directories(of: &Path) -> Result<Vec<String>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", of.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(of).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_dir() {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// `io.k8s.api.core.v1` for `k8s.io/api/core/v1`.
fn published_name(path: &str) -> String {
    match path.strip_prefix("k8s.io/") {
        Some(rest) => format!("io.k8s.{}", rest.replace('/', ".")),
        None => path.replace('/', "."),
    }
}

fn form(name: &str) -> Option<&'static str> {
    FORMS.iter().find(|(of, _)| *of == name).map(|(_, form)| *form)
}

/// The names of the types that a type of `package` consists of.
fn referred(package: &str, of: &str) -> Vec<String> {
    let of = of.trim_start_matches(['*', '[', ']']);
    if let Some((key, value)) = of.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
        return [referred(package, key), referred(package, value)].concat();
    }
    match of.contains('.') {
        true => vec![of.to_string()],
        false => vec![format!("{package}.{of}")],
    }
}

fn first_lower(name: &str) -> String {
    let mut chars = name.chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

fn first_upper(name: &str) -> String {
    let mut chars = name.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_have_each_fact() {
        let text = include_str!("../../../crates/apimachinery/src/descriptors/kubernetes.txt");
        let entries = difference::entries(text);
        let facts = FACTS.lines().filter_map(|line| line.split_once(' '));
        let facts: Vec<(&str, &str)> = facts.filter(|(of, _)| *of != "#").collect();
        for (of, facts) in &facts {
            let has = entries.get(*of).map(String::as_str).unwrap_or_default();
            assert!(has.ends_with(&format!(" facts={facts}")), "{of}: {has}");
        }
        assert_eq!(text.matches(" facts=").count(), facts.len());
    }
}
