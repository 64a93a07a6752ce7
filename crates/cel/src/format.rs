//! Kubernetes' named formats: `format.dns1123Label().validate(text)` returns no value, or the errors.

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::{Opaque, OptionalValue};
use knarr_apimachinery::formats::fits;
use knarr_apimachinery::names;

use super::Cel;
use super::library::{Declared, Library, call, inside, opaque, string, text};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Format(&'static str);

const NAME: &str = "kubernetes.NamedFormat";

impl Opaque for Format {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

const NAMES: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

fn errors(format: &str, given: &str) -> Vec<String> {
    let enforced = |message: &str| match fits(format, given) {
        true => Vec::new(),
        false => vec![message.to_string()],
    };
    match format {
        "dns1123Label" => names::dns1123_label(given),
        "dns1123Subdomain" => names::dns1123_subdomain(given),
        "dns1035Label" => names::dns1035_label(given),
        "qualifiedName" => names::qualified_name(given),
        "dns1123LabelPrefix" => names::generated(given, names::dns1123_label),
        "dns1123SubdomainPrefix" => names::generated(given, names::dns1123_subdomain),
        "dns1035LabelPrefix" => names::generated(given, names::dns1035_label),
        "labelValue" => names::label_value(given),
        "uri" => enforced("invalid URI for request"),
        "uuid" => enforced("does not match the UUID format"),
        "byte" => enforced("invalid base64"),
        "date" => enforced("invalid date"),
        "datetime" => enforced("invalid datetime"),
        _ => Vec::new(),
    }
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    env.add_type(of.to_owned())?;
    let mut library = Library(env);
    // A library function cannot be a closure: each format has a function of its own.
    macro_rules! formats {
        ($($name:literal)*) => {
            $(library.global(concat!("format.", $name), &[], |args| {
                call(args, |[]: [Cel; 0]| Ok(opaque(Format($name))))
            })?;)*
        };
    }
    formats!("dns1123Label" "dns1123Subdomain" "dns1035Label" "qualifiedName" "dns1123LabelPrefix"
        "dns1123SubdomainPrefix" "dns1035LabelPrefix" "labelValue" "uri" "uuid" "byte" "date" "datetime");
    library.global("format.named", &[STRING_TYPE], |args| {
        call(args, |[name]| {
            let name = text(&name)?;
            let known = NAMES.into_iter().find(|n| *n == name);
            Ok(opaque(known.map_or_else(OptionalValue::none, |name| {
                OptionalValue::of(opaque(Format(name)))
            })))
        })
    })?;
    library.member("validate", &of, &[STRING_TYPE], |args| {
        call(args, |[format, given]| {
            let found = errors(inside::<Format>(&format)?.0, text(&given)?);
            let found: Vec<Cel> = found.into_iter().map(string).collect();
            Ok(opaque(match found.is_empty() {
                true => OptionalValue::none(),
                false => OptionalValue::of(Cel::List(found.into())),
            }))
        })
    })
}
