//! Files that are no ONNX models, but are often found under the name of one: known by their first bytes.

/// The kind of a file that is not an ONNX model, with the remedy; `None` if it is unknown.
pub(crate) fn recognize(file: &[u8]) -> Option<&'static str> {
    let text = file.trim_ascii_start();
    let is_page = |tag: &[u8]| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    // A file of safetensors begins with the length of its JSON.
    let is_safetensors = file.get(8..10) == Some(b"{\"") && file.get(5..8) == Some(&[0; 3]);
    Some(match file {
        [] => "an empty file of 0 bytes: the download or the copy of it has failed",
        _ if file.starts_with(b"version https://git-lfs.github.com/") => {
            "a pointer of Git LFS to one: get the file itself with `git lfs pull`"
        }
        _ if is_page(b"<!doctype html") || is_page(b"<html") => {
            "a page of HTML: its download was answered with a page, such as of a login or an error"
        }
        _ if file.starts_with(b"PK\x03\x04") => {
            "a zip archive, such as PyTorch saves models in: export it with `torch.onnx.export`, or unpack the archive"
        }
        _ if file.starts_with(b"\x1f\x8b") => "a file packed with gzip: unpack it with `gunzip`",
        _ if file.starts_with(b"GGUF") => "a GGUF file, which llama.cpp runs: get its model as ONNX",
        _ if file.starts_with(b"\x89HDF\r\n") => {
            "an HDF5 file, such as Keras saves models in: export it with `tf2onnx`"
        }
        _ if is_safetensors => "a file of safetensors, which has weights and no operators: export its model as ONNX",
        _ if file.starts_with(b"\x80") && file.get(1).is_some_and(|protocol| (2..=5).contains(protocol)) => {
            "a pickle of Python: export the model in it as ONNX"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_kinds_are_named_with_their_remedies() {
        let safetensors = [&[60, 0, 0, 0, 0, 0, 0, 0][..], b"{\"weight\":{}}"].concat();
        for (file, word) in [
            (&b""[..], "0 bytes"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
            (b"\n<!DOCTYPE html>\n<html>", "HTML"),
            (b"<html><body>404</body></html>", "HTML"),
            (b"PK\x03\x04\x14\x00", "torch.onnx.export"),
            (b"\x1f\x8b\x08\x00", "gunzip"),
            (b"GGUF\x03", "GGUF"),
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
            (&safetensors, "safetensors"),
            (b"\x80\x04\x95", "pickle"),
        ] {
            assert!(recognize(file).is_some_and(|what| what.contains(word)), "{word}: {:?}", recognize(file));
        }
        // The beginnings of models, and what only resembles another kind.
        let (no_json, too_long) = ([&[60, 0, 0, 0, 0, 0, 0, 0][..], b"12"].concat(), [&[60; 8][..], b"{\"w"].concat());
        for file in [&b"\x08\x08"[..], b"\x08\x04", b"\x80\x09", b"not a model", &no_json, &too_long] {
            assert_eq!(recognize(file), None, "{file:?}");
        }
    }
}
