//! The cluster DNS addresses on the node's loopback interface, where questions of pods and of the node itself arrive without
//! translation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use netlink_packet_route::address::{AddressHeaderFlags, AddressMessage, AddressScope};
use nix::errno::Errno;
use rtnetlink::{AddressMessageBuilder, Handle};

const LOOPBACK: &str = "lo";

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

/// Adds those of the addresses that are not there yet.
pub async fn add(addresses: &[IpAddr]) -> Result<(), AddressError> {
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
