//! Kubernetes' CIDR library.

use std::net::IpAddr;

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::Opaque;
use knarr_apimachinery::cidr::Cidr;

use super::ip::{self, Ip};
use super::library::{Declared, Library, call, inside, opaque, string, text};
use super::{Cel, EvaluationError};

/// A value of the type `net.CIDR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CidrValue(Cidr);

const NAME: &str = "net.CIDR";

impl Opaque for CidrValue {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

/// A CIDR, or why it is none, as the library's functions report it.
fn parse(given: &str) -> Result<Cidr, EvaluationError> {
    let wrong = |why: &str| {
        EvaluationError::Failed(format!(
            "network address parse error during conversion from string: netip.ParsePrefix({given:?}): {why}"
        ))
    };
    let (address, bits) = given.split_once('/').ok_or_else(|| wrong("no '/'"))?;
    let address = ip::parse(address)?;
    let plain = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let plain = plain && (bits == "0" || !bits.starts_with('0'));
    match bits.parse::<u8>() {
        Ok(bits) if plain => Cidr::new(address, bits).ok_or_else(|| wrong("prefix length out of range")),
        _ => Err(wrong("bad bits after slash")),
    }
}

fn cidr(value: &Cel) -> Result<Cidr, EvaluationError> {
    match value {
        Cel::String(given) => parse(given),
        other => Ok(inside::<CidrValue>(other)?.0),
    }
}

fn address(value: &Cel) -> Result<IpAddr, EvaluationError> {
    match value {
        Cel::String(given) => ip::parse(given),
        other => Ok(inside::<Ip>(other)?.0),
    }
}

fn contains_cidr(outer: Cidr, inner: Cidr) -> bool {
    outer.contains(inner.masked().address()) && outer.prefix_len() <= inner.prefix_len()
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    let ip = Type::new_opaque_type(ip::NAME);
    env.add_type(of.to_owned())?;
    let mut library = Library(env);
    library.global("cidr", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(opaque(CidrValue(parse(text(&given)?)?))))
    })?;
    library.global("isCIDR", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(Cel::Bool(parse(text(&given)?).is_ok())))
    })?;
    library.global("string", std::slice::from_ref(&of), |args| {
        call(args, |[net]| Ok(string(cidr(&net)?.to_string())))
    })?;
    for other in [STRING_TYPE, ip] {
        library.member("containsIP", &of, &[other], |args| {
            call(args, |[net, other]| {
                Ok(Cel::Bool(cidr(&net)?.contains(address(&other)?)))
            })
        })?;
    }
    for other in [STRING_TYPE, of.to_owned()] {
        library.member("containsCIDR", &of, &[other], |args| {
            call(args, |[net, other]| {
                Ok(Cel::Bool(contains_cidr(cidr(&net)?, cidr(&other)?)))
            })
        })?;
    }
    library.member("ip", &of, &[], |args| {
        call(args, |[net]| Ok(opaque(Ip(cidr(&net)?.address()))))
    })?;
    library.member("prefixLength", &of, &[], |args| {
        call(args, |[net]| Ok(Cel::Int(cidr(&net)?.prefix_len().into())))
    })?;
    library.member("masked", &of, &[], |args| {
        call(args, |[net]| Ok(opaque(CidrValue(cidr(&net)?.masked()))))
    })
}
