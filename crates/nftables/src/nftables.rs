//! Tables, sets and their elements, as they are in the kernel.

use std::sync::Arc;

use nix::errno::Errno;

use crate::batch::Batch;
use crate::element::Elements;
use crate::error::{Error, Operation};
use crate::protocol::{Family, attribute, flag, message};
use crate::set::{Set, SetShape};
use crate::socket::{About, Socket};
use crate::wire::{Malformed, be32, text};

/// Rejections of one batch that an error keeps.
const MAX_REJECTIONS: usize = 16;

/// How often a set is read again because the kernel resized it meanwhile. A resize of a million elements takes some 100 ms.
const RESIZED_TRIES: usize = 20;

/// A connection to nf_tables of one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    pub fn open() -> Result<Self, Error> {
        Ok(Nftables {
            socket: Socket::open()?,
        })
    }

    /// The number of the last commit in this network namespace, by any process.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let about = About::new(Operation::Generation, "of the ruleset");
        let generation = self.socket.request(
            &about,
            0,
            |writer, flags, sequence| {
                let message = writer.message(message::GET_GENERATION, flags, sequence, 0, 0);
                writer.end_message(message);
            },
            || None,
            |generation, message| {
                if message.kind == message::GENERATION {
                    let (_, attributes) = message.nf()?;
                    *generation = attributes.find(attribute::GENERATION_ID)?.map(be32).transpose()?;
                }
                Ok(())
            },
        )?;
        generation.ok_or_else(|| about.malformed(Malformed("a generation without its number")))
    }

    /// All tables of the namespace.
    pub fn tables(&mut self) -> Result<Vec<(Family, String)>, Error> {
        let about = About::new(Operation::ListTables, "of the ruleset");
        self.socket.request(
            &about,
            flag::DUMP,
            |writer, flags, sequence| {
                let message = writer.message(message::GET_TABLE, flags, sequence, 0, 0);
                writer.end_message(message);
            },
            Vec::new,
            |tables, message| {
                let (family, attributes) = message.nf()?;
                let name = attributes.find(attribute::TABLE_NAME)?.map(text).transpose()?;
                if let (message::TABLE, Some(family), Some(name)) =
                    (message.kind, Family::of_number(family), name)
                {
                    tables.push((family, name.to_string()));
                }
                Ok(())
            },
        )
    }

    /// The names of a table's chains; of a table that does not exist, none.
    pub fn chains(&mut self, family: Family, table: &str) -> Result<Vec<Arc<str>>, Error> {
        let about = About::new(Operation::ListChains, format!("{family} {table}"));
        self.socket.request(
            &about,
            flag::DUMP,
            |writer, flags, sequence| {
                let message = writer.message(message::GET_CHAIN, flags, sequence, family.number(), 0);
                writer.end_message(message);
            },
            Vec::new,
            |chains: &mut Vec<Arc<str>>, message| {
                if message.kind != message::CHAIN {
                    return Ok(());
                }
                let (_, attributes) = message.nf()?;
                let name = |kind: u16| attributes.find(kind)?.map(text).transpose();
                if name(attribute::CHAIN_TABLE)? == Some(table) {
                    chains.extend(name(attribute::CHAIN_NAME)?.map(Arc::from));
                }
                Ok(())
            },
        )
    }

    /// The named sets and maps of a table; of a table that does not exist, none. Maps of named objects are left out.
    pub fn sets(&mut self, family: Family, table: &str) -> Result<Vec<Arc<Set>>, Error> {
        let about = About::new(Operation::ListSets, format!("{family} {table}"));
        let sets = self.socket.request(
            &about,
            flag::DUMP,
            |writer, flags, sequence| {
                let message = writer.message(message::GET_SET, flags, sequence, family.number(), 0);
                writer.text(attribute::SET_TABLE, table);
                writer.end_message(message);
            },
            Vec::new,
            |sets: &mut Vec<Arc<Set>>, message| {
                if message.kind != message::SET {
                    return Ok(());
                }
                let (of, attributes) = message.nf()?;
                // An older kernel does not filter by table.
                let set = Set::parse(of, attributes)?;
                let is_named = |set: &Set| !set.name.starts_with("__");
                sets.extend(
                    set.filter(|set| set.family == family && *set.table == *table && is_named(set))
                        .map(Arc::new),
                );
                Ok(())
            },
        );
        match sets {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            sets => sets,
        }
    }

    /// All elements of a set at one moment. Those of a catch-all (`*`) are left out.
    ///
    /// The kernel resizes a hash set some time after the commit that let it grow or shrink. A dump continues at the number of
    /// elements that it has returned, so a dump during a resize returns some elements twice and others not at all, without an
    /// error: repeated elements are the sign of it.
    pub fn elements(&mut self, set: &Set) -> Result<Elements, Error> {
        let about = About::new(Operation::DumpElements, set.describe());
        for _ in 0..RESIZED_TRIES {
            let elements = self.dump_elements(set, &about)?;
            if set.shape == SetShape::Intervals {
                return Ok(elements.join_intervals(set));
            }
            if !elements.has_repeated_keys() {
                return Ok(elements);
            }
        }
        Err(Error::Interrupted {
            operation: Operation::DumpElements,
            target: about.target.clone(),
        })
    }

    fn dump_elements(&mut self, set: &Set, about: &About) -> Result<Elements, Error> {
        self.socket.request(
            about,
            flag::DUMP,
            |writer, flags, sequence| {
                let family = set.family.number();
                let message = writer.message(message::GET_ELEMENTS, flags, sequence, family, 0);
                writer.text(attribute::ELEMENTS_TABLE, &set.table);
                writer.text(attribute::ELEMENTS_SET, &set.name);
                writer.end_message(message);
            },
            || Elements::of(set),
            |elements, message| match message.kind {
                message::ELEMENTS => elements.parse(set, message.nf()?.1),
                _ => Ok(()),
            },
        )
    }

    /// Makes all changes of the batch at one moment; or none, then the error is [`Error::Rejected`]. Any other error
    /// leaves open which of the two it was.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let about = About::new(Operation::AddElements, "several sets");
        let count = batch.message_count();
        let first = self.socket.sequence(count);
        let answers = self.socket.exchange(&batch.encode(first), &about)?;
        let mut rejections = Vec::new();
        let mut is_acknowledged = false;
        let acknowledged = first.wrapping_add(count).wrapping_sub(2);
        for answer in &answers {
            is_acknowledged |= answer.sequence == acknowledged && answer.result.is_ok();
            if let Some(rejection) = batch.rejection(first, answer)
                && rejections.len() < MAX_REJECTIONS
            {
                rejections.push(rejection);
            }
        }
        match (rejections.is_empty(), is_acknowledged) {
            (false, _) => Err(Error::Rejected(rejections)),
            (true, true) => Ok(()),
            (true, false) => Err(about.receive(Errno::EAGAIN)),
        }
    }
}
