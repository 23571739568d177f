//! `.npy` files with false headers.

/// A file of version 1 with this header and these elements.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    let length = (header.len() + 11).next_multiple_of(64) - 10;
    file.extend_from_slice(&u16::try_from(length).expect("a short header").to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.resize(10 + length - 1, b' ');
    file.push(b'\n');
    file.extend_from_slice(data);
    file
}

/// An array of these axes.
pub(crate) fn array(descr: &str, is_fortran: bool, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let fortran = if is_fortran { "True" } else { "False" };
    let axes: String = shape.iter().map(|axis| format!("{axis}, ")).collect();
    with_header(&format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({axes}), }}"), data)
}

/// `2^20, 1 × 29, 0`: no element, and a million brackets.
pub(crate) fn empty_axes() -> Vec<u64> {
    let mut shape = vec![1; 31];
    (shape[0], shape[30]) = (1 << 20, 0);
    shape
}

/// A version 2 file that announces a header of this length.
pub(crate) fn announcing_header(bytes: u32) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x02\x00".to_vec();
    file.extend_from_slice(&bytes.to_le_bytes());
    file.extend_from_slice("{'descr': ".repeat(1000).as_bytes());
    file
}
