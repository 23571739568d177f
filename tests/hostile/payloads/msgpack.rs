//! MessagePack by hand, and the envelope around it.

/// A tensor, an array of texts, a data frame: the codes of the extensions.
pub(crate) const TENSOR: u8 = 3;
pub(crate) const TEXTS: u8 = 4;
pub(crate) const FRAME: u8 = 5;

/// The code of texts in the header of an array.
const TEXT_CODE: u8 = 64;

/// A buffer of MessagePack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pack(pub(crate) Vec<u8>);

impl Pack {
    /// The header of a map, in its longest form.
    pub(crate) fn map(self, entries: u32) -> Self {
        self.raw(&[0xdf]).raw(&entries.to_be_bytes())
    }

    /// The header of an array, in its longest form.
    pub(crate) fn list(self, items: u32) -> Self {
        self.raw(&[0xdd]).raw(&items.to_be_bytes())
    }

    pub(crate) fn text(self, text: &str) -> Self {
        self.raw(&[0xdb]).raw(&length(text.len())).raw(text.as_bytes())
    }

    pub(crate) fn ext(self, code: u8, payload: &[u8]) -> Self {
        self.raw(&[0xc9]).raw(&length(payload.len())).raw(&[code]).raw(payload)
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a short part").to_be_bytes()
}

/// The arguments of a function call with only this value.
pub(crate) fn argument(value: &[u8]) -> Vec<u8> {
    Pack::default().map(1).text("args").list(1).raw(value).0
}

/// One extension alone.
pub(crate) fn ext(code: u8, payload: &[u8]) -> Vec<u8> {
    Pack::default().ext(code, payload).0
}

/// The header of an array: type and axes.
fn array_header(code: u8, shape: &[u64]) -> Vec<u8> {
    let mut header = vec![code, shape.len() as u8, 0, 0, 0, 0, 0, 0];
    shape.iter().for_each(|axis| header.extend_from_slice(&axis.to_le_bytes()));
    header
}

/// A tensor with these axes and bytes, which may disagree.
pub(crate) fn tensor(dtype: u8, shape: &[u64], data: &[u8]) -> Vec<u8> {
    ext(TENSOR, &[&array_header(dtype, shape), data].concat())
}

/// An array of texts of these lengths, all of the letter `a`.
pub(crate) fn texts(lengths: &[usize]) -> Vec<u8> {
    let mut payload = array_header(TEXT_CODE, &[lengths.len() as u64]);
    let mut end = 0_u64;
    for length in lengths {
        end += *length as u64;
        payload.extend_from_slice(&end.to_le_bytes());
    }
    payload.resize(payload.len() + end as usize, b'a');
    ext(TEXTS, &payload)
}

/// An envelope without segments around a tree.
pub(crate) fn envelope(tree: &[u8]) -> Vec<u8> {
    [&envelope_head(HEAD_BYTES + tree.len()), tree].concat()
}

/// The bytes before the tree of an envelope without segments.
const HEAD_BYTES: usize = 24;

/// The head of an envelope of this total length.
pub(crate) fn envelope_head(bytes: usize) -> Vec<u8> {
    let mut head = b"\x89CBE\x01\0\0\0".to_vec();
    head.extend_from_slice(&length_le(bytes - HEAD_BYTES));
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&(bytes as u64).to_le_bytes());
    head
}

fn length_le(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a short tree").to_le_bytes()
}

/// An enum's variant, nested `levels` levels deep: `{"N": {"N": … "Leaf"}}`.
pub(crate) fn variants(variant: &str, levels: usize, last: &str) -> Vec<u8> {
    let level = [&[0x81, 0xa0 | variant.len() as u8], variant.as_bytes()].concat();
    let mut tree = level.repeat(levels);
    tree.push(0xa0 | last.len() as u8);
    tree.extend_from_slice(last.as_bytes());
    tree
}
