//! The cluster DNS addresses on the node's loopback interface, where questions of pods and of the node itself arrive without
//! translation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::route::RouteType;
use nix::errno::Errno;
use rtnetlink::{AddressMessageBuilder, Handle, MulticastGroup, RouteMessageBuilder};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LOOPBACK: &str = "lo";
/// The kernel takes less than a millisecond where its workers are idle; this only bounds what must not happen.
const LOCAL_ROUTE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("cannot open a netlink socket")]
    Socket(#[source] std::io::Error),
    #[error("cannot find the loopback interface")]
    Loopback(#[source] rtnetlink::Error),
    #[error("there is no loopback interface")]
    NoLoopback,
    #[error("cannot add {address} to the loopback interface")]
    Add {
        address: IpAddr,
        #[source]
        source: rtnetlink::Error,
    },
    #[error("cannot remove {address} from the loopback interface")]
    Remove {
        address: IpAddr,
        #[source]
        source: rtnetlink::Error,
    },
    #[error("cannot read the route to {address}")]
    Route {
        address: IpAddr,
        #[source]
        source: rtnetlink::Error,
    },
    #[error("the kernel no longer reports changes of routes")]
    Closed,
    #[error("the kernel has added no local route to {address}")]
    NoLocalRoute { address: IpAddr },
}

/// Whole addresses, of host scope: never chosen as the source of what leaves the node.
fn message(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = match address {
        IpAddr::V4(address) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(address, 32)
            .build(),
        IpAddr::V6(address) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(index)
            .address(address, 128)
            .build(),
    };
    message.header.scope = AddressScope::Host;
    // The address cannot be a duplicate here, and it must be usable at once.
    message.header.flags = AddressHeaderFlags::Nodad;
    if address.is_ipv6() {
        // On loopback the route of the prefix discards packets. A socket that connects before the kernel has added the
        // local route would keep that route, and none of its packets would arrive.
        let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
        message.attributes.push(AddressAttribute::Flags(flags));
    }
    message
}

fn is(error: &rtnetlink::Error, errno: Errno) -> bool {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.raw_code() == -(errno as i32),
        _ => false,
    }
}

/// Runs with a netlink socket of the network namespace of the calling thread.
async fn with_loopback<T, F: Future<Output = Result<T, AddressError>>>(
    act: impl FnOnce(Handle, u32) -> F,
) -> Result<T, AddressError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(AddressError::Socket)?;
    let connection = tokio::spawn(connection);
    let result = async {
        let mut links = handle.link().get().match_name(LOOPBACK.to_string()).execute();
        let link = links.try_next().await.map_err(AddressError::Loopback)?;
        let index = link.ok_or(AddressError::NoLoopback)?.header.index;
        act(handle.clone(), index).await
    };
    let result = result.await;
    connection.abort();
    result
}

/// Adds those of the addresses that are not there yet. Returns when the kernel delivers packets to all of them.
pub async fn add(addresses: &[IpAddr]) -> Result<(), AddressError> {
    // Before the addresses are added, so that no change of routes is missed.
    let (watch, _, mut changes) =
        rtnetlink::new_multicast_connection(&[MulticastGroup::Ipv6Route]).map_err(AddressError::Socket)?;
    let (own, handle, _) = rtnetlink::new_connection().map_err(AddressError::Socket)?;
    let connections = [tokio::spawn(watch), tokio::spawn(own)];
    let added = async {
        add_missing(addresses).await?;
        for address in addresses {
            let local = until_local(&handle, &mut changes, *address);
            let in_time = timeout(LOCAL_ROUTE, local).await;
            in_time.map_err(|_| AddressError::NoLocalRoute { address: *address })??;
        }
        Ok::<(), AddressError>(())
    };
    let added = added.await;
    connections.iter().for_each(JoinHandle::abort);
    added
}

/// An IPv6 address has no local route yet when the kernel answers the request for it: a worker adds that.
async fn until_local<T>(
    handle: &Handle,
    changes: &mut (impl Stream<Item = T> + Unpin),
    address: IpAddr,
) -> Result<(), AddressError> {
    let IpAddr::V6(v6) = address else {
        return Ok(());
    };
    loop {
        let route = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128);
        let mut routes = handle.route().get(route.build()).execute();
        match routes.try_next().await {
            Ok(Some(route)) if route.header.kind == RouteType::Local => return Ok(()),
            // Without a route the kernel answers with an error number.
            Ok(_) | Err(rtnetlink::Error::NetlinkError(_)) => {}
            Err(source) => return Err(AddressError::Route { address, source }),
        }
        changes.next().await.ok_or(AddressError::Closed)?;
    }
}

async fn add_missing(addresses: &[IpAddr]) -> Result<(), AddressError> {
    with_loopback(async |handle: Handle, index| {
        for address in addresses {
            // Only the message differs from what the request makes of the address.
            let mut request = handle.address().add(index, *address, 32).replace();
            *request.message_mut() = message(index, *address);
            match request.execute().await {
                Err(source) if !is(&source, Errno::EEXIST) => {
                    return Err(AddressError::Add {
                        address: *address,
                        source,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    })
    .await
}

/// Removes those of the addresses that are there.
pub async fn remove(addresses: &[IpAddr]) -> Result<(), AddressError> {
    with_loopback(async |handle: Handle, index| {
        for address in addresses {
            match handle.address().del(message(index, *address)).execute().await {
                Err(source) if !is(&source, Errno::EADDRNOTAVAIL) => {
                    return Err(AddressError::Remove {
                        address: *address,
                        source,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    })
    .await
}
