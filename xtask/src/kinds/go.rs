//! The declarations of Go's types, as far as Kubernetes' `types.go` files use the language: structs with tags, named types, the
//! constants of string types. Functions and everything else are skipped.

use std::collections::BTreeMap;
use std::path::Path;

/// The declarations of one package, by name.
#[derive(Debug, Default)]
pub struct Package {
    pub types: BTreeMap<String, Type>,
    pub constants: BTreeMap<String, Constant>,
}

/// A string constant.
#[derive(Debug, PartialEq)]
pub struct Constant {
    /// Its type in this package.
    pub of: String,
    pub value: Text,
}

#[derive(Debug, PartialEq)]
pub enum Text {
    Literal(String),
    /// Another constant: `core/v1.IPv4Protocol`.
    Constant(String),
}

#[derive(Debug)]
pub struct Type {
    pub definition: Definition,
    /// Whether its comment has `+enum`.
    pub is_enum: bool,
}

#[derive(Debug)]
pub enum Definition {
    Struct(Vec<Field>),
    /// Another type: `string`, `[]string`, `map[core/v1.ResourceName]resource.Quantity`.
    Named(String),
}

#[derive(Debug, Default, PartialEq)]
pub struct Field {
    /// The type's own name for an embedded field.
    pub name: String,
    /// Its packages written as in the data file.
    pub of: String,
    pub is_embedded: bool,
    /// Of the tag `json`, in order: the name, then the options.
    pub json: Option<Vec<String>>,
    /// `name` in the tag `protobuf`.
    pub proto_name: Option<String>,
}

/// Reads the files of a package. `packages` has the name of each known package by its import path.
///
/// # Errors
///
/// If the directory or a file cannot be read.
pub fn read(directory: &Path, packages: &BTreeMap<String, String>) -> Result<Package, std::io::Error> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let generated =
            name.starts_with("zz_generated") || name.starts_with("generated.") || name.ends_with("_test.go");
        if name.ends_with(".go") && !generated {
            files.push(path);
        }
    }
    files.sort();
    let mut package = Package::default();
    for file in files {
        parse(&std::fs::read_to_string(file)?, packages, &mut package);
    }
    Ok(package)
}

fn parse(text: &str, packages: &BTreeMap<String, String>, package: &mut Package) {
    let mut imports = BTreeMap::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut lines = without_block_comments(text);
    while let Some(line) = lines.next() {
        if let Some(text) = line.trim_start().strip_prefix("//") {
            comment.push(text.trim());
            continue;
        }
        if line == "import (" {
            imports = imports_of(lines.by_ref().take_while(|line| *line != ")"), packages);
        } else if let Some(rest) = line.strip_prefix("import ") {
            imports = imports_of([rest].into_iter(), packages);
        } else if line == "const (" {
            let block = lines.by_ref().take_while(|line| *line != ")");
            package
                .constants
                .extend(block.filter_map(|line| constant(line, &imports)));
        } else if let Some(rest) = line.strip_prefix("const ") {
            package.constants.extend(constant(rest, &imports));
        } else if let Some(rest) = line.strip_prefix("type ") {
            let is_enum = comment.contains(&"+enum");
            if let Some((name, definition)) = declaration(rest, &mut lines, &imports) {
                package.types.insert(name, Type { definition, is_enum });
            }
        }
        // A comment that an empty line separates from a type belongs to it, too, for Kubernetes' generators.
        if !line.is_empty() {
            comment.clear();
        }
    }
}

/// The lines that are not part of a comment that begins a line with `/*`.
fn without_block_comments(text: &str) -> impl Iterator<Item = &str> {
    let mut is_comment = false;
    text.lines().filter(move |line| {
        is_comment |= line.trim_start().starts_with("/*");
        let keeps = !is_comment;
        is_comment &= !line.contains("*/");
        keeps
    })
}

/// The packages that a file imports, by the name that it uses.
fn imports_of<'t>(
    lines: impl Iterator<Item = &'t str>,
    packages: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut imports = BTreeMap::new();
    for line in lines {
        let mut quoted = line.split('"');
        let (Some(alias), Some(path)) = (quoted.next(), quoted.next()) else {
            continue;
        };
        let alias = match alias.trim() {
            "" => path.rsplit('/').next().unwrap_or(path),
            alias => alias,
        };
        // Types of other packages are not part of the API.
        let known = packages.get(path).cloned().unwrap_or_else(|| format!("?{path}"));
        imports.insert(alias.to_string(), known);
    }
    imports
}

/// `Name Type = "value"`, `Name = Type("value")` or `Name = Type(package.Constant)`.
fn constant(line: &str, imports: &BTreeMap<String, String>) -> Option<(String, Constant)> {
    let (left, value) = line.split_once('=')?;
    let value = value.split("//").next()?.trim();
    let mut words = left.split_whitespace();
    let name = words.next()?;
    let (of, value) = match words.next() {
        Some(of) => (of, value),
        None => value
            .split_once('(')
            .map(|(of, value)| (of, value.trim_end_matches(')')))?,
    };
    let value = match value.strip_prefix('"') {
        Some(text) => Text::Literal(text.split('"').next()?.to_string()),
        None => Text::Constant(qualified(value, imports)),
    };
    let of = of.to_string();
    Some((name.to_string(), Constant { of, value }))
}

/// What follows `type`.
fn declaration<'t>(
    rest: &str,
    lines: &mut impl Iterator<Item = &'t str>,
    imports: &BTreeMap<String, String>,
) -> Option<(String, Definition)> {
    let (name, of) = rest.split_once(' ')?;
    if !name.chars().all(|c| c.is_ascii_alphanumeric()) {
        return None;
    }
    let of = of.trim().trim_start_matches("= ");
    if of == "struct {" {
        let fields = fields(lines.take_while(|line| *line != "}"), imports);
        return Some((name.to_string(), Definition::Struct(fields)));
    }
    if of.starts_with("struct{") {
        return Some((name.to_string(), Definition::Struct(Vec::new())));
    }
    if of.starts_with("interface") || of.starts_with("func") {
        return None;
    }
    let of = of.split("//").next()?.trim();
    Some((name.to_string(), Definition::Named(qualified(of, imports))))
}

fn fields<'t>(lines: impl Iterator<Item = &'t str>, imports: &BTreeMap<String, String>) -> Vec<Field> {
    let declared = lines
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"));
    declared.filter_map(|line| field(line, imports)).collect()
}

fn field(line: &str, imports: &BTreeMap<String, String>) -> Option<Field> {
    let (declared, tags) = match line.split_once('`') {
        Some((declared, rest)) => (declared, rest.split('`').next()?),
        None => (line.split("//").next()?, ""),
    };
    let declared = declared.trim();
    let (name, of) = match declared.split_once(char::is_whitespace) {
        Some((name, of)) => (Some(name), of.trim()),
        None => (None, declared),
    };
    // An unexported field is not part of the API.
    let own = of.trim_start_matches('*').rsplit('.').next()?;
    let name_or_own = name.unwrap_or(own);
    if !name_or_own.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let json = tag(tags, "json").map(|tag| tag.split(',').map(str::to_string).collect());
    let proto_name = tag(tags, "protobuf")
        .and_then(|tag| tag.split(',').find_map(|option| option.strip_prefix("name=")))
        .map(str::to_string);
    Some(Field {
        name: name_or_own.to_string(),
        of: qualified(of, imports),
        is_embedded: name.is_none(),
        json,
        proto_name,
    })
}

fn tag<'t>(tags: &'t str, name: &str) -> Option<&'t str> {
    let at = tags.find(&format!("{name}:\""))?;
    tags[at + name.len() + 2..].split('"').next()
}

/// A type with its packages' names in place of the file's.
fn qualified(of: &str, imports: &BTreeMap<String, String>) -> String {
    for prefix in ["*", "[]"] {
        if let Some(rest) = of.strip_prefix(prefix) {
            return format!("{prefix}{}", qualified(rest, imports));
        }
    }
    if let Some((key, value)) = of.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
        return format!("map[{}]{}", qualified(key, imports), qualified(value, imports));
    }
    match of.split_once('.') {
        Some((package, name)) => {
            let unknown = format!("?{package}");
            format!("{}.{name}", imports.get(package).unwrap_or(&unknown))
        }
        None => of.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_named_types_and_constants_are_read() {
        let source = r#"
import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +enum
type Policy string

const (
	// Never is never.
	Never Policy = "Never"
	Other        = "other"
	Always       = Policy("Always")
	Same         = Policy(types.Policy) // the same
)

// Thing has a comment.
type Thing struct {
	metav1.TypeMeta `json:",inline"`
	// Standard metadata.
	/* What
	follows string is metadata.
	*/
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Owner *types.UID `json:"owner,omitempty" protobuf:"bytes,2,opt,name=owner" patchStrategy:"merge"` // why
	Sizes map[string][]Policy
	hidden int
}

func (t Thing) String() string {
	return ""
}
"#;
        let packages = [
            ("k8s.io/apimachinery/pkg/apis/meta/v1", "meta/v1"),
            ("k8s.io/apimachinery/pkg/types", "types"),
        ];
        let packages = packages
            .map(|(path, name)| (path.to_string(), name.to_string()))
            .into();
        let mut package = Package::default();
        parse(source, &packages, &mut package);
        let constants: Vec<String> = package
            .constants
            .iter()
            .map(|(name, c)| format!("{name} {} {:?}", c.of, c.value))
            .collect();
        assert_eq!(
            constants,
            [
                r#"Always Policy Literal("Always")"#,
                r#"Never Policy Literal("Never")"#,
                r#"Same Policy Constant("types.Policy")"#,
            ]
        );
        assert!(package.types["Policy"].is_enum);
        let Definition::Struct(fields) = &package.types["Thing"].definition else {
            panic!("not a struct");
        };
        let shown: Vec<String> = fields
            .iter()
            .map(|f| format!("{} {} {} {:?}", f.name, f.of, f.is_embedded, f.json))
            .collect();
        assert_eq!(
            shown,
            [
                r#"TypeMeta meta/v1.TypeMeta true Some(["", "inline"])"#,
                r#"ObjectMeta meta/v1.ObjectMeta true Some(["metadata", "omitempty"])"#,
                r#"Owner *types.UID false Some(["owner", "omitempty"])"#,
                "Sizes map[string][]Policy false None",
            ]
        );
    }
}
