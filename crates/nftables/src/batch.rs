//! A batch: the changes of one commit, which are made all or not at all.

use std::sync::Arc;

use crate::element::Element;
use crate::error::{Error, Operation, Rejection};
use crate::protocol::{Family, attribute, flag, message};
use crate::set::Set;
use crate::socket::Answer;
use crate::wire::{Attributes, HEADER, MAX_ATTRIBUTE, Messages, NF_HEADER, Open, Writer};

/// Elements of one commit that is not too long: the kernel holds its transaction lock, not the packets, for some
/// milliseconds.
const FULL_ELEMENTS: usize = 4096;

/// What a message changes, for errors.
#[derive(Clone, Debug)]
enum Target {
    Set(Arc<Set>),
    Table(Family, Arc<str>),
}

#[derive(Clone, Debug)]
struct Part {
    start: usize,
    operation: Operation,
    target: Target,
}

/// A message whose list of elements may still grow.
#[derive(Clone, Copy, Debug)]
struct Growing {
    message: Open,
    list: Open,
}

/// Changes of sets, in the order in which they are made: to give a map's element other data, delete it and add it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    writer: Writer,
    parts: Vec<Part>,
    growing: Option<Growing>,
    elements: usize,
}

impl Batch {
    pub fn new() -> Self {
        Batch::default()
    }

    /// Adds an element. It may be there already, if its data is the same (else EBUSY).
    pub fn add(&mut self, set: &Arc<Set>, element: Element<'_>) -> Result<(), Error> {
        self.element(Operation::AddElements, set, element)
    }

    /// Adds an element that must not be there (EEXIST).
    pub fn create(&mut self, set: &Arc<Set>, element: Element<'_>) -> Result<(), Error> {
        self.element(Operation::CreateElements, set, element)
    }

    /// Deletes an element, which must exist (ENOENT); its data is not compared. A range needs both ends.
    pub fn delete(&mut self, set: &Arc<Set>, element: Element<'_>) -> Result<(), Error> {
        self.element(Operation::DeleteElements, set, element)
    }

    /// Deletes all elements of a set.
    pub fn flush(&mut self, set: &Arc<Set>) {
        let message = self.begin(Operation::FlushSet, message::DELETE_ELEMENTS, 0, set);
        self.writer.end_message(message);
    }

    /// Deletes a table with all that is in it; it must be there (ENOENT).
    pub fn delete_table(&mut self, family: Family, name: &str) {
        self.end_growing();
        let part = Part {
            start: self.writer.buffer.len(),
            operation: Operation::DeleteTable,
            target: Target::Table(family, name.into()),
        };
        self.parts.push(part);
        let message = self
            .writer
            .message(message::DELETE_TABLE, flag::REQUEST, 0, family.number(), 0);
        self.writer.text(attribute::TABLE_NAME, name);
        self.writer.end_message(message);
    }

    /// Appends what another batch does.
    pub fn append(&mut self, other: &Batch) {
        self.end_growing();
        let start = self.writer.buffer.len();
        self.writer.buffer.extend_from_slice(&other.writer.buffer);
        self.parts.extend(other.parts.iter().map(|part| Part {
            start: start + part.start,
            ..part.clone()
        }));
        self.elements += other.elements;
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Elements added and deleted.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Whether it is time to commit it and to go on with a new one. What must happen at once may still be put in.
    pub fn is_full(&self) -> bool {
        self.elements >= FULL_ELEMENTS
    }

    fn element(&mut self, operation: Operation, set: &Arc<Set>, element: Element<'_>) -> Result<(), Error> {
        let is_addition = operation != Operation::DeleteElements;
        element.check(set, is_addition)?;
        let continues = self.parts.last().is_some_and(|part| {
            let same_set = matches!(&part.target, Target::Set(of) if Arc::ptr_eq(of, set));
            same_set && part.operation == operation
        });
        let growing = match self.growing {
            Some(growing)
                if continues
                    && self.writer.length_of(growing.list) + element.encoded_length(set) <= MAX_ATTRIBUTE =>
            {
                growing
            }
            _ => {
                let (kind, flags) = match operation {
                    Operation::CreateElements => (message::ELEMENTS, flag::CREATE | flag::EXCL),
                    Operation::DeleteElements => (message::DELETE_ELEMENTS, 0),
                    _ => (message::ELEMENTS, flag::CREATE),
                };
                let message = self.begin(operation, kind, flags, set);
                let list = self.writer.nested(attribute::ELEMENTS_LIST);
                *self.growing.insert(Growing { message, list })
            }
        };
        element.write(set, &mut self.writer, is_addition);
        // Lengths are kept right all the time, so that the batch can be sent after any call.
        self.writer.end_nested(growing.list);
        self.writer.end_message(growing.message);
        self.elements += 1;
        Ok(())
    }

    fn begin(&mut self, operation: Operation, kind: u16, flags: u16, set: &Arc<Set>) -> Open {
        self.end_growing();
        let part = Part {
            start: self.writer.buffer.len(),
            operation,
            target: Target::Set(set.clone()),
        };
        self.parts.push(part);
        let family = set.family.number();
        let message = self.writer.message(kind, flag::REQUEST | flags, 0, family, 0);
        self.writer.text(attribute::ELEMENTS_TABLE, &set.table);
        self.writer.text(attribute::ELEMENTS_SET, &set.name);
        message
    }

    fn end_growing(&mut self) {
        self.growing = None;
    }

    /// Messages, with the marks of begin and end.
    pub(crate) fn message_count(&self) -> u32 {
        u32::try_from(self.parts.len())
            .unwrap_or(u32::MAX)
            .saturating_add(2)
    }

    /// Its messages between the marks of a transaction, numbered from `sequence` on; the last one is to be acknowledged.
    pub(crate) fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut writer = Writer {
            buffer: Vec::with_capacity(self.writer.buffer.len() + 2 * (HEADER + NF_HEADER)),
        };
        let mark = |writer: &mut Writer, kind, sequence| {
            let subsystem = message::SUBSYSTEM_NFTABLES;
            let mark = writer.message(kind, flag::REQUEST, sequence, 0, subsystem);
            writer.end_message(mark);
        };
        mark(&mut writer, message::BATCH_BEGIN, sequence);
        let begin = writer.buffer.len();
        writer.buffer.extend_from_slice(&self.writer.buffer);
        let mut last = sequence;
        for part in &self.parts {
            last = last.wrapping_add(1);
            writer.number(begin + part.start, last);
        }
        if let Some(part) = self.parts.last() {
            writer.add_flags(begin + part.start, flag::ACK);
        }
        mark(&mut writer, message::BATCH_END, last.wrapping_add(1));
        writer.buffer
    }

    /// The rejected message of an error about this batch, which was sent from `sequence` on.
    pub(crate) fn rejection(&self, sequence: u32, answer: &Answer) -> Option<Rejection> {
        let errno = answer.result.err()?;
        let index = answer.sequence.wrapping_sub(sequence).checked_sub(1);
        let part = index.and_then(|index| self.parts.get(index as usize));
        let Some(part) = part else {
            return Some(Rejection {
                operation: Operation::AddElements,
                target: "a batch".into(),
                key: None,
                errno,
            });
        };
        Some(Rejection {
            operation: part.operation,
            target: match &part.target {
                Target::Set(set) => set.describe(),
                Target::Table(family, name) => format!("{family} {name}").into(),
            },
            key: answer.offset.and_then(|offset| self.key_at(part, offset)),
            errno,
        })
    }

    /// The key of the element that begins at this place of the part's message or includes it.
    fn key_at(&self, part: &Part, offset: usize) -> Option<Box<[u8]>> {
        let bytes = self.writer.buffer.get(part.start..)?;
        let message = Messages(bytes).next()?.ok()?;
        let (_, attributes) = message.nf().ok()?;
        let list = attributes.nested(attribute::ELEMENTS_LIST).ok()??;
        for element in list {
            let (_, element) = element.ok()?;
            let end = element.as_ptr() as usize + element.len() - bytes.as_ptr() as usize;
            if offset < end {
                let key = Attributes(element).nested(attribute::ELEMENT_KEY).ok()??;
                return key.find(attribute::DATA_VALUE).ok()?.map(Box::from);
            }
        }
        None
    }
}
