//! The known name that is nearest to an unknown one, so that every typo gets the same kind of answer.

/// Longer names are not typed, and each comparison costs the product of both lengths.
const MAX_BYTES: usize = 256;

/// A request with a wrong name is compared with this many.
const MAX_COMPARED: usize = 256;

/// The nearest of the known names, the first of equals, if it is near enough.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if typed.len() > MAX_BYTES {
        return None;
    }
    let typed = typed.to_lowercase();
    known
        .into_iter()
        .take(MAX_COMPARED)
        .filter(|name| name.len() <= MAX_BYTES)
        .map(|name| (distance(&typed, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= tolerance(name))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The number of wrong letters. A shortened name (`max_batch`) counts as one wrong letter.
fn distance(typed: &str, name: &str) -> usize {
    let is_cut_short = typed.len() >= 3 && name.starts_with(typed) && name != typed;
    if is_cut_short { 1 } else { strsim::damerau_levenshtein(typed, name) }
}

/// A third of the letters may be wrong, and one always may: beyond that a suggestion misleads more often than it helps.
fn tolerance(name: &str) -> usize {
    (name.chars().count() / 3).max(1)
}
