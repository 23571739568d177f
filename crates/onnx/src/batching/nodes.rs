//! The operators of a graph, read one by one from the bytes of the file, and the whole numbers of its constants.

use std::cell::Cell;
use std::collections::HashMap;

use crate::wire::{Field, Fields, last, packed};

/// The nodes of a model with its bodies. One with more is not read.
const MAX_NODES: usize = 100_000;

/// Names of one node.
const MAX_NAMES: usize = 4096;

/// The numbers of a constant that may be axes, positions or lengths.
const MAX_INTS: usize = 64;

/// The fields of a constant: with its axes and numbers. Each node that has it looks at them.
const MAX_FIELDS: usize = 256;

/// The cost that reading one file may have beyond one walk over its bytes. When it is spent, no more is found.
///
/// A few bytes of a node name a constant, whose fields are read for each node, so the cost of a file is not bounded by
/// its length.
pub(super) struct Budget {
    /// Names that are looked up, and fields of constants that are read.
    steps: Cell<usize>,
    /// Values that are remembered.
    values: Cell<usize>,
}

impl Default for Budget {
    /// A usual node takes about ten steps and has one output.
    fn default() -> Self {
        Self::new(100 * MAX_NODES, 2 * MAX_NODES)
    }
}

impl Budget {
    pub(super) fn new(steps: usize, values: usize) -> Self {
        Self { steps: Cell::new(steps), values: Cell::new(values) }
    }

    /// `None` if it is spent.
    pub(super) fn step(&self) -> Option<()> {
        take_one(&self.steps)
    }

    /// `None` if it is spent.
    pub(super) fn value(&self) -> Option<()> {
        take_one(&self.values)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.steps.get() == 0 || self.values.get() == 0
    }
}

fn take_one(left: &Cell<usize>) -> Option<()> {
    left.set(left.get().checked_sub(1)?);
    Some(())
}

/// A graph, or the body of a loop or branch, with what it declares.
pub(super) struct Graph<'g> {
    /// The bytes of each node, in the order in which they run.
    pub(super) nodes: Vec<&'g [u8]>,
    /// The tensors of the weights, by name.
    weights: HashMap<&'g str, &'g [u8]>,
    /// The number of axes of values.
    pub(super) ranks: HashMap<&'g str, usize>,
}

impl<'g> Graph<'g> {
    /// `None` if it has more of something than any model.
    pub(super) fn read(bytes: &'g [u8]) -> Option<Self> {
        let (mut nodes, mut weights, mut ranks) = (Vec::new(), HashMap::new(), HashMap::new());
        for field in Fields::new(bytes) {
            match field.ok()? {
                (1, Field::Bytes(node)) => nodes.push(node),
                (5, Field::Bytes(weight)) => _ = weights.insert(text_of(weight, 8)?, weight),
                (11..=13, Field::Bytes(info)) => ranks.extend(text_of(info, 1).zip(rank_of(info))),
                _ => {}
            }
            if nodes.len().max(weights.len()).max(ranks.len()) > MAX_NODES {
                return None;
            }
        }
        Some(Self { nodes, weights, ranks })
    }

    pub(super) fn weight(&self, name: &str) -> Option<Constant<'g>> {
        self.weights.get(name).map(|bytes| Constant(bytes))
    }
}

/// A `TensorProto`.
#[derive(Clone, Copy)]
pub(super) struct Constant<'g>(pub(super) &'g [u8]);

impl<'g> Constant<'g> {
    /// `None`: more than any constant has, or the budget is spent.
    fn fields(self, budget: &Budget) -> impl Iterator<Item = Option<(u32, Field<'g>)>> {
        let fields = Fields::new(self.0).map(Result::ok).enumerate();
        fields.map(|(index, field)| budget.step().and(field).filter(|_| index < MAX_FIELDS))
    }

    pub(super) fn rank(self, budget: &Budget) -> Option<usize> {
        let mut rank = 0;
        for field in self.fields(budget) {
            match field? {
                (1, Field::Number(_)) => rank += 1,
                (1, Field::Bytes(dims)) => rank += packed(dims).take(MAX_INTS + 1).count(),
                _ => {}
            }
            if rank > MAX_INTS {
                return None;
            }
        }
        Some(rank)
    }

    /// Its numbers, if they are few and whole, and lie in the file.
    pub(super) fn ints(self, budget: &Budget) -> Option<Vec<i64>> {
        let (mut kind, mut raw, mut ints) = (0, None, Vec::new());
        for field in self.fields(budget) {
            match field? {
                (2, Field::Number(number)) => kind = number,
                (5 | 7, Field::Number(number)) => ints.push(number as i64),
                (5 | 7, Field::Bytes(numbers)) => {
                    ints.extend(packed(numbers).take(MAX_INTS + 1).map(|number| number as i64));
                }
                (9, Field::Bytes(bytes)) => raw = Some(bytes),
                (14, Field::Number(1)) => return None,
                _ => {}
            }
            if ints.len() > MAX_INTS {
                return None;
            }
        }
        match (kind, raw) {
            (6 | 7, None) => Some(ints),
            (6, Some(raw)) if raw.len() <= 4 * MAX_INTS => {
                Some(raw.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
            }
            (7, Some(raw)) if raw.len() <= 8 * MAX_INTS => {
                Some(raw.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
            }
            _ => None,
        }
    }
}

/// A use of an operator.
#[derive(Default)]
pub(super) struct Node<'g> {
    pub(super) operator: &'g str,
    pub(super) domain: &'g str,
    pub(super) name: &'g str,
    pub(super) inputs: Vec<&'g str>,
    pub(super) outputs: Vec<&'g str>,
    attributes: Vec<(&'g str, &'g [u8])>,
}

impl<'g> Node<'g> {
    /// `None` if it is no node, or has more names than any.
    pub(super) fn read(bytes: &'g [u8]) -> Option<Self> {
        let mut node = Self::default();
        for field in Fields::new(bytes) {
            let (number, Field::Bytes(bytes)) = field.ok()? else { continue };
            let text = || str::from_utf8(bytes).ok();
            match number {
                1 => node.inputs.push(text()?),
                2 => node.outputs.push(text()?),
                3 => node.name = text()?,
                4 => node.operator = text()?,
                5 => node.attributes.push((text_of(bytes, 1)?, bytes)),
                7 => node.domain = text()?,
                _ => {}
            }
            if node.inputs.len().max(node.outputs.len()).max(node.attributes.len()) > MAX_NAMES {
                return None;
            }
        }
        Some(node)
    }

    fn attribute(&self, name: &str) -> impl Iterator<Item = (u32, Field<'g>)> + use<'g> {
        let bytes = self.attributes.iter().find(|(other, _)| *other == name).map_or(&[][..], |(_, bytes)| bytes);
        Fields::new(bytes).map_while(Result::ok)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|(other, _)| *other == name)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        let ints = self.attribute(name);
        ints.filter_map(|field| if let (3, Field::Number(int)) = field { Some(int as i64) } else { None }).last()
    }

    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        let mut ints = Vec::new();
        for field in self.attribute(name) {
            match field {
                (8, Field::Number(int)) => ints.push(int as i64),
                (8, Field::Bytes(bytes)) => ints.extend(packed(bytes).take(MAX_INTS + 1).map(|int| int as i64)),
                _ => {}
            }
            if ints.len() > MAX_INTS {
                return None;
            }
        }
        self.has(name).then_some(ints)
    }

    /// The tensor of a `Constant`.
    pub(super) fn tensor(&self) -> Option<Constant<'g>> {
        let value = self.attribute("value");
        value
            .filter_map(|field| if let (5, Field::Bytes(tensor)) = field { Some(Constant(tensor)) } else { None })
            .last()
    }

    /// The bodies of a loop or branch.
    pub(super) fn bodies(&self) -> impl Iterator<Item = &'g [u8]> + '_ {
        let fields = self.attributes.iter().flat_map(|(_, bytes)| Fields::new(bytes).map_while(Result::ok));
        fields.filter_map(|field| if let (6, Field::Bytes(graph)) = field { Some(graph) } else { None })
    }
}

/// The text with this number; empty if there is none.
fn text_of(message: &[u8], wanted: u32) -> Option<&str> {
    str::from_utf8(last(message, wanted).ok()?.unwrap_or_default()).ok()
}

/// The number of axes of a `ValueInfoProto`.
fn rank_of(info: &[u8]) -> Option<usize> {
    let inner = |message, wanted| last(message, wanted).ok().flatten();
    let shape = inner(inner(inner(info, 2)?, 1)?, 2)?;
    Some(Fields::new(shape).filter(|field| matches!(field, Ok((1, Field::Bytes(_))))).count())
}
