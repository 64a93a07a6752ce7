//! Kubernetes' IP library.

use std::net::IpAddr;

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::Opaque;

use super::library::{Declared, Library, call, inside, opaque, string, text};
use super::{Cel, EvaluationError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip(pub IpAddr);

pub const NAME: &str = "net.IP";

impl Opaque for Ip {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

/// An address as Kubernetes accepts it: without a zone, and not an IPv4-mapped IPv6 address.
pub fn parse(given: &str) -> Result<IpAddr, EvaluationError> {
    if given.contains('%') {
        return Err(EvaluationError::Failed(format!(
            "IP Address {given:?} with zone value is not allowed"
        )));
    }
    let address: IpAddr = given
        .parse()
        .map_err(|_| EvaluationError::Failed(format!("IP Address {given:?} parse error during conversion from string: ParseAddr({given:?}): unable to parse IP")))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(EvaluationError::Failed(format!(
            "IPv4-mapped IPv6 address {given:?} is not allowed"
        ))),
        address => Ok(address),
    }
}

fn address(value: &Cel) -> Result<IpAddr, EvaluationError> {
    Ok(inside::<Ip>(value)?.0)
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(v6) => (v6.segments()[0] & 0xff0f) == 0xff02,
    }
}

fn is_link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0) == 0xfe80,
    }
}

fn is_global_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || is_link_local_unicast(address))
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    env.add_type(of.to_owned())?;
    let mut library = Library(env);
    let given = [STRING_TYPE];
    library.global("ip", &given, |args| {
        call(args, |[given]| Ok(opaque(Ip(parse(text(&given)?)?))))
    })?;
    library.global("isIP", &given, |args| {
        call(args, |[given]| Ok(Cel::Bool(parse(text(&given)?).is_ok())))
    })?;
    library.global("ip.isCanonical", &given, |args| {
        call(args, |[given]| {
            let given = text(&given)?;
            Ok(Cel::Bool(parse(given)?.to_string() == given))
        })
    })?;
    library.global("string", std::slice::from_ref(&of), |args| {
        call(args, |[ip]| Ok(string(address(&ip)?.to_string())))
    })?;
    library.member("family", &of, &[], |args| {
        call(args, |[ip]| {
            Ok(Cel::Int(if address(&ip)?.is_ipv4() { 4 } else { 6 }))
        })
    })?;
    library.member("isUnspecified", &of, &[], |args| {
        call(args, |[ip]| Ok(Cel::Bool(address(&ip)?.is_unspecified())))
    })?;
    library.member("isLoopback", &of, &[], |args| {
        call(args, |[ip]| Ok(Cel::Bool(address(&ip)?.is_loopback())))
    })?;
    library.member("isLinkLocalMulticast", &of, &[], |args| {
        call(args, |[ip]| Ok(Cel::Bool(is_link_local_multicast(address(&ip)?))))
    })?;
    library.member("isLinkLocalUnicast", &of, &[], |args| {
        call(args, |[ip]| Ok(Cel::Bool(is_link_local_unicast(address(&ip)?))))
    })?;
    library.member("isGlobalUnicast", &of, &[], |args| {
        call(args, |[ip]| Ok(Cel::Bool(is_global_unicast(address(&ip)?))))
    })
}
