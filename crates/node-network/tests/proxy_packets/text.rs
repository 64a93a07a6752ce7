//! A table with its elements as text for `nft -f`.

use std::fmt::Write;
use std::net::IpAddr;

use knarr_network::nft::{Data, Key, Verdict};
use knarr_network::proxy::frontend::Reader;
use knarr_network::proxy::{Element, Family, TableChange, layout};

#[derive(Clone, Copy)]
enum Field {
    Address,
    Protocol,
    Port,
    Number,
}

/// The fields of a map's key and data.
fn fields(set: &str) -> (&'static [Field], &'static [Field]) {
    use Field::{Address, Number, Port, Protocol};
    match set {
        layout::ENDPOINTS | layout::AFFINITY_ENDPOINTS => {
            (&[Address, Protocol, Port, Number], &[Address, Port])
        }
        layout::NODE_PORT_ENDPOINTS | layout::AFFINITY_NODE_PORT_ENDPOINTS => {
            (&[Protocol, Port, Number], &[Address, Port])
        }
        layout::AFFINITY_IDS => (&[Address, Protocol, Port, Address, Port], &[Number]),
        layout::AFFINITY_NODE_PORT_IDS => (&[Protocol, Port, Address, Port], &[Number]),
        layout::NODE_PORTS
        | layout::LOCAL_NODE_PORTS
        | layout::SHORT_CIRCUIT_NODE_PORTS
        | layout::NO_ENDPOINTS_NODE_PORTS
        | layout::EXTERNAL_NODE_PORTS
        | layout::AFFINITY_NODE_PORT_TIMEOUTS => (&[Protocol, Port], &[]),
        layout::CLUSTER_IPS => (&[Address], &[]),
        layout::HAIRPIN => (&[Address, Address], &[]),
        layout::FIREWALL_SOURCES => (&[Address, Protocol, Port, Address], &[]),
        _ => (&[Address, Protocol, Port], &[]),
    }
}

fn concatenation(bytes: &[u8], fields: &[Field], family: Family) -> Vec<String> {
    let mut reader = Reader::new(bytes);
    let one = |field: &Field| match field {
        Field::Address => reader.address(family).unwrap().to_string(),
        Field::Protocol => (reader.number().unwrap().to_ne_bytes()[0]).to_string(),
        Field::Port => reader.port().unwrap().to_string(),
        Field::Number => reader.number().unwrap().to_string(),
    };
    fields.iter().map(one).collect()
}

fn key(set: &str, key: &Key, family: Family) -> String {
    let (fields, _) = fields(set);
    let mut start = concatenation(&key.start, fields, family);
    if let Some(end) = &key.end {
        for (first, last) in start.iter_mut().zip(concatenation(end, fields, family)) {
            if *first != last {
                *first = format!("{first}-{last}");
            }
        }
    }
    start.join(" . ")
}

fn data(set: &str, data: &Data, family: Family) -> String {
    match data {
        Data::Value(bytes) => concatenation(bytes, fields(set).1, family).join(" . "),
        Data::Verdict(Verdict::Goto(chain)) => format!("goto {chain}"),
        Data::Verdict(Verdict::Jump(chain)) => format!("jump {chain}"),
        Data::Verdict(Verdict::Drop) => "drop".into(),
        Data::Verdict(other) => panic!("{other:?}"),
    }
}

/// One line of `nft` that adds or deletes an element.
fn line(out: &mut String, verb: &str, table: &str, family: Family, element: &Element) {
    let mut text = key(element.set, &element.key, family);
    if let Some(value) = &element.data {
        text += " : ";
        text += &data(element.set, value, family);
    }
    let (ip, set) = (family.name(), element.set);
    writeln!(out, "{verb} element {ip} {table} {set} {{ {text} }}").unwrap();
}

/// A change as one transaction.
pub fn change(table: &str, family: Family, change: &TableChange) -> String {
    let mut out = String::new();
    for element in &change.remove {
        line(&mut out, "delete", table, family, element);
    }
    for element in &change.add {
        line(&mut out, "add", table, family, element);
    }
    out
}

/// An address with a port, as URLs have them.
pub fn socket(address: &str, port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(address.parse::<IpAddr>().unwrap(), port)
}
