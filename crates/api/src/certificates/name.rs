//! The names in requests and certificates: the subject and the subject alternative names, read from DER and written to it.
//!
//! A subject is a list of attributes, one to each relative distinguished name, in the order in which they are written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use der::asn1::{Ia5StringRef, ObjectIdentifier, PrintableStringRef};
use der::{Encode, Tag};

use super::der::{Element, context, element, sequence};
use super::error::RequestError;

/// The type of an attribute of a subject; those that Go's `pkix.Name` has, which Kubernetes' signers copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeType {
    /// The user.
    CommonName,
    /// A group of the user.
    Organization,
    OrganizationalUnit,
    Country,
    Province,
    Locality,
    StreetAddress,
    PostalCode,
    SerialNumber,
}

impl AttributeType {
    const ALL: [(AttributeType, &'static str, ObjectIdentifier); 9] = [
        (AttributeType::CommonName, "CN", oid("2.5.4.3")),
        (AttributeType::SerialNumber, "SERIALNUMBER", oid("2.5.4.5")),
        (AttributeType::Country, "C", oid("2.5.4.6")),
        (AttributeType::Locality, "L", oid("2.5.4.7")),
        (AttributeType::Province, "ST", oid("2.5.4.8")),
        (AttributeType::StreetAddress, "STREET", oid("2.5.4.9")),
        (AttributeType::Organization, "O", oid("2.5.4.10")),
        (AttributeType::OrganizationalUnit, "OU", oid("2.5.4.11")),
        (AttributeType::PostalCode, "POSTALCODE", oid("2.5.4.17")),
    ];

    /// Its short name, such as `CN`.
    pub fn short_name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(kind, ..)| *kind == self)
            .map_or("", |(_, name, _)| name)
    }

    fn of_oid(oid: ObjectIdentifier) -> Option<Self> {
        let found = Self::ALL.iter().find(|(.., known)| *known == oid);
        found.map(|(kind, ..)| *kind)
    }

    fn oid(self) -> Option<ObjectIdentifier> {
        let found = Self::ALL.iter().find(|(kind, ..)| *kind == self);
        found.map(|(.., oid)| *oid)
    }
}

const fn oid(text: &str) -> ObjectIdentifier {
    ObjectIdentifier::new_unwrap(text)
}

/// How the text of an attribute is encoded. Other string types are rejected: readers disagree on what their bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringType {
    Utf8,
    Printable,
    Ia5,
}

impl StringType {
    fn tag(self) -> Tag {
        match self {
            StringType::Utf8 => Tag::Utf8String,
            StringType::Printable => Tag::PrintableString,
            StringType::Ia5 => Tag::Ia5String,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectAttribute {
    pub kind: AttributeType,
    pub string_type: StringType,
    pub value: String,
}

/// The subject of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    attributes: Vec<SubjectAttribute>,
}

impl Subject {
    pub(super) fn read(name: &Element<'_>) -> Result<Self, RequestError> {
        let mut attributes = Vec::new();
        for rdn in name.elements(Tag::Sequence)? {
            let [attribute] = rdn.elements(Tag::Set)?[..] else {
                return Err(RequestError::MultiValuedName);
            };
            let [kind, value] = attribute.sequence()?;
            attributes.push(read_attribute(kind.oid()?, &value)?);
        }
        let subject = Subject { attributes };
        if subject.values(AttributeType::CommonName).count() > 1 {
            return Err(RequestError::SeveralCommonNames);
        }
        Ok(subject)
    }

    /// All attributes in order.
    pub fn attributes(&self) -> &[SubjectAttribute] {
        &self.attributes
    }

    /// The values of one type in order.
    pub fn values(&self, kind: AttributeType) -> impl Iterator<Item = &str> {
        let found = self.attributes.iter().filter(move |a| a.kind == kind);
        found.map(|a| a.value.as_str())
    }

    /// The DER of the name.
    pub fn to_der(&self) -> Result<Vec<u8>, der::Error> {
        let mut rdns = Vec::new();
        for attribute in &self.attributes {
            let oid = attribute.kind.oid().ok_or(Tag::ObjectIdentifier.value_error())?;
            let value = element(attribute.string_type.tag(), &[attribute.value.as_bytes()])?;
            let attribute = sequence(&[&oid.to_der()?, &value])?;
            rdns.extend(element(Tag::Set, &[&attribute])?);
        }
        sequence(&[&rdns])
    }
}

fn read_attribute(oid: ObjectIdentifier, value: &Element<'_>) -> Result<SubjectAttribute, RequestError> {
    let Some(kind) = AttributeType::of_oid(oid) else {
        return Err(RequestError::UnknownAttribute(oid.to_string()));
    };
    let (string_type, content) = match value.tag() {
        Tag::Utf8String => (StringType::Utf8, value.content(Tag::Utf8String)?),
        Tag::PrintableString => {
            let content = value.content(Tag::PrintableString)?;
            PrintableStringRef::new(content)?;
            (StringType::Printable, content)
        }
        Tag::Ia5String => {
            let content = value.content(Tag::Ia5String)?;
            Ia5StringRef::new(content)?;
            (StringType::Ia5, content)
        }
        other => {
            return Err(RequestError::StringType {
                attribute: kind.short_name(),
                found: other.to_string(),
            });
        }
    };
    let text = std::str::from_utf8(content).map_err(|_| RequestError::AttributeText(kind.short_name()))?;
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(RequestError::AttributeText(kind.short_name()));
    }
    Ok(SubjectAttribute {
        kind,
        string_type,
        value: text.to_string(),
    })
}

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AltName {
    Email(String),
    Dns(String),
    Uri(String),
    Ip(IpAddr),
}

impl fmt::Display for AltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AltName::Email(name) | AltName::Dns(name) | AltName::Uri(name) => f.write_str(name),
            AltName::Ip(address) => address.fmt(f),
        }
    }
}

// Tags of GeneralName (RFC 5280, 4.2.1.6).
const EMAIL: u8 = 1;
const DNS: u8 = 2;
const URI: u8 = 6;
const IP: u8 = 7;

impl AltName {
    /// The names of the extension's value.
    pub(super) fn read_all(extension: &[u8]) -> Result<Vec<Self>, RequestError> {
        let names = Element::decode(extension)?.elements(Tag::Sequence)?;
        if names.is_empty() {
            return Err(RequestError::EmptyAltNames);
        }
        names.iter().map(AltName::read).collect()
    }

    fn read(name: &Element<'_>) -> Result<Self, RequestError> {
        let Tag::ContextSpecific {
            constructed: false,
            number,
        } = name.tag()
        else {
            return Err(RequestError::AltNameType);
        };
        let content = name.content(name.tag())?;
        match number.value() {
            EMAIL => Ok(AltName::Email(visible(content)?)),
            DNS => Ok(AltName::Dns(visible(content)?)),
            URI => Ok(AltName::Uri(visible(content)?)),
            IP => Ok(AltName::Ip(address(content)?)),
            _ => Err(RequestError::AltNameType),
        }
    }

    fn to_der(&self) -> Result<Vec<u8>, der::Error> {
        let (number, content) = match self {
            AltName::Email(name) => (EMAIL, name.clone().into_bytes()),
            AltName::Dns(name) => (DNS, name.clone().into_bytes()),
            AltName::Uri(name) => (URI, name.clone().into_bytes()),
            AltName::Ip(IpAddr::V4(address)) => (IP, address.octets().to_vec()),
            AltName::Ip(IpAddr::V6(address)) => (IP, address.octets().to_vec()),
        };
        element(context(number, false), &[&content])
    }
}

/// The value of the subject alternative name extension with these names.
pub fn subject_alt_name(names: &[AltName]) -> Result<Vec<u8>, der::Error> {
    let mut all = Vec::new();
    for name in names {
        all.extend(name.to_der()?);
    }
    sequence(&[&all])
}

/// ASCII without spaces and control characters: a NUL or a line break is read differently by different readers.
fn visible(content: &[u8]) -> Result<String, RequestError> {
    let text = std::str::from_utf8(content).map_err(|_| RequestError::AltNameText)?;
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(RequestError::AltNameText);
    }
    Ok(text.to_string())
}

fn address(content: &[u8]) -> Result<IpAddr, RequestError> {
    let bad = RequestError::AltNameAddress;
    if let Ok(four) = <[u8; 4]>::try_from(content) {
        return Ok(Ipv4Addr::from(four).into());
    }
    let address = Ipv6Addr::from(<[u8; 16]>::try_from(content).map_err(|_| bad.clone())?);
    // The same address as an IPv4 one to some readers, another one to others.
    match address.to_ipv4_mapped() {
        Some(_) => Err(bad),
        None => Ok(address.into()),
    }
}
