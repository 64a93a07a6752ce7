//! Kubernetes' CIDR library.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::Opaque;

use super::Cel;
use super::ip::{self, Ip};
use super::library::{Declared, Library, call, inside, opaque, string, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr {
    address: IpAddr,
    bits: u8,
}

const NAME: &str = "net.CIDR";

impl Opaque for Cidr {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

impl Cidr {
    fn parse(given: &str) -> Result<Cidr, String> {
        let wrong = |why: &str| {
            format!(
                "network address parse error during conversion from string: netip.ParsePrefix({given:?}): {why}"
            )
        };
        let (address, bits) = given.split_once('/').ok_or_else(|| wrong("no '/'"))?;
        let address = ip::parse(address)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let plain = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
        let plain = plain && (bits == "0" || !bits.starts_with('0'));
        match bits.parse::<u8>() {
            Ok(bits) if plain && bits <= most => Ok(Cidr { address, bits }),
            Ok(_) if plain => Err(wrong("prefix length out of range")),
            _ => Err(wrong("bad bits after slash")),
        }
    }

    fn masked(self) -> Cidr {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
            }
        };
        Cidr { address, ..self }
    }

    fn contains(self, address: IpAddr) -> bool {
        let same_family = self.address.is_ipv4() == address.is_ipv4();
        let other = Cidr { address, ..self };
        same_family && other.masked() == self.masked()
    }

    fn contains_cidr(self, other: Cidr) -> bool {
        self.contains(other.masked().address) && self.bits <= other.bits
    }
}

fn cidr(value: &Cel) -> Result<Cidr, String> {
    match value {
        Cel::String(given) => Cidr::parse(given),
        other => inside(other),
    }
}

fn address(value: &Cel) -> Result<IpAddr, String> {
    match value {
        Cel::String(given) => ip::parse(given),
        other => Ok(inside::<Ip>(other)?.0),
    }
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    let ip = Type::new_opaque_type(ip::NAME);
    env.add_type(of.to_owned())?;
    let mut library = Library(env);
    library.global("cidr", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(opaque(Cidr::parse(text(&given)?)?)))
    })?;
    library.global("isCIDR", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(Cel::Bool(Cidr::parse(text(&given)?).is_ok())))
    })?;
    library.global("string", std::slice::from_ref(&of), |args| {
        call(args, |[net]| {
            let Cidr { address, bits } = cidr(&net)?;
            Ok(string(format!("{address}/{bits}")))
        })
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
                Ok(Cel::Bool(cidr(&net)?.contains_cidr(cidr(&other)?)))
            })
        })?;
    }
    library.member("ip", &of, &[], |args| {
        call(args, |[net]| Ok(opaque(Ip(cidr(&net)?.address))))
    })?;
    library.member("prefixLength", &of, &[], |args| {
        call(args, |[net]| Ok(Cel::Int(cidr(&net)?.bits.into())))
    })?;
    library.member("masked", &of, &[], |args| {
        call(args, |[net]| Ok(opaque(cidr(&net)?.masked())))
    })
}
