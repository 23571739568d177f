//! Media types and the choice between them: `Content-Type` and `Accept` (RFC 9110 §8.3, §12.5.1).

/// A media type or range: `application/json`, `image/*`, `*/*`, with a quality where one was given.
///
/// ```
/// use callboard_codec::{Format, MediaType};
///
/// let offers = [Format::Json, Format::Msgpack];
/// let choose = |accept: &str| MediaType::choose(accept, &offers);
/// assert_eq!(choose("application/msgpack"), Some(Format::Msgpack));
/// assert_eq!(choose("application/*;q=0.5, application/json;q=0.1"), Some(Format::Msgpack));
/// assert_eq!(choose("*/*"), Some(Format::Json)); // the first that is offered
/// assert_eq!(choose("text/html"), None);
/// assert_eq!(choose("*/*, application/json;q=0"), Some(Format::Msgpack));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MediaType {
    /// Lower case, without parameters.
    essence: String,
    /// In thousandths.
    quality: u16,
}

/// The most ranges of one header that are read; browsers send about ten.
const MAX_RANGES: usize = 64;
const FULL: u16 = 1000;

impl MediaType {
    /// Reads one media type or range. Parameters other than `q` are ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = split_outside_quotes(text, ';');
        let essence = parts.next()?.trim().to_ascii_lowercase();
        let (kind, sub) = essence.split_once('/')?;
        if !is_token(kind) || !is_token(sub) || (kind == "*" && sub != "*") {
            return None;
        }
        let mut quality = FULL;
        for parameter in parts {
            if let Some((name, value)) = parameter.split_once('=')
                && name.trim().eq_ignore_ascii_case("q")
            {
                quality = parse_quality(value.trim())?;
            }
        }
        Some(Self { essence, quality })
    }

    /// Type and subtype in lower case: `application/json`.
    #[must_use]
    pub fn essence(&self) -> &str {
        &self.essence
    }

    /// The quality, from 0 (not at all) to 1.
    #[must_use]
    pub fn quality(&self) -> f32 {
        f32::from(self.quality) / f32::from(FULL)
    }

    /// Whether a media type lies within this range.
    #[must_use]
    pub fn includes(&self, media_type: &str) -> bool {
        Self::range_includes(&self.essence, media_type)
    }

    /// Whether a media type lies within a range that has no parameters, such as `image/*`.
    #[must_use]
    pub fn range_includes(range: &str, media_type: &str) -> bool {
        specificity(range, media_type) > 0
    }

    /// A media type without its parameters, as it is written.
    #[must_use]
    pub fn without_parameters(media_type: &str) -> &str {
        media_type.split(';').next().unwrap_or_default().trim()
    }

    /// As [`choose`](Self::choose), for any media types: the index of the best.
    #[must_use]
    pub fn choose_index(accept: &str, offers: &[&str]) -> Option<usize> {
        Self::rank(accept, offers).first().copied()
    }

    /// The indices of all offers that an `Accept` header allows, the preferred one first, by the rules of
    /// [`choose`](Self::choose): for callers whose first choice may not fit the answer.
    #[must_use]
    pub fn rank(accept: &str, offers: &[&str]) -> Vec<usize> {
        if accept.trim().is_empty() {
            return (0..offers.len()).collect();
        }
        let ranges: Vec<Self> = split_outside_quotes(accept, ',').take(MAX_RANGES).filter_map(Self::parse).collect();
        let quality = |offer: &str| {
            let deciding = ranges.iter().filter(|range| range.includes(offer));
            // Among equally specific ranges the highest quality decides.
            deciding
                .max_by_key(|range| (specificity(&range.essence, offer), range.quality))
                .map_or(0, |range| range.quality)
        };
        let rated = offers.iter().enumerate().map(|(index, offer)| (quality(offer), index));
        let mut rated: Vec<_> = rated.filter(|(quality, _)| *quality > 0).collect();
        rated.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality)); // Stable: of equals the earlier offer.
        rated.into_iter().map(|(_, index)| index).collect()
    }
}

/// The precision of the match: 3 the type itself, 2 its kind, 1 any type, 0 none.
fn specificity(range: &str, media_type: &str) -> u8 {
    let essence = MediaType::without_parameters(media_type);
    match range.strip_suffix("/*") {
        Some("*") => 1,
        Some(kind) => {
            let same = essence.split_once('/').is_some_and(|(theirs, _)| theirs.eq_ignore_ascii_case(kind));
            if same { 2 } else { 0 }
        }
        None if essence.eq_ignore_ascii_case(range) => 3,
        None => 0,
    }
}

/// Thousandths of `0`, `0.25`, `1`, `1.000`; `None` for anything else.
fn parse_quality(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.len() <= 3 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let whole = match whole {
        "0" => 0,
        "1" => FULL,
        _ => return None,
    };
    let fraction: u16 = format!("{fraction:0<3}").parse().ok().filter(|_| digits)?;
    Some(whole + fraction).filter(|quality| *quality <= FULL)
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |char| {
        let inside = quoted;
        match char {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        char == separator && !inside
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specific_ranges_win_then_quality_then_the_order_of_offers() {
        let offers = ["text/html", "application/json", "image/png"];
        let choose = |accept| MediaType::choose_index(accept, &offers);
        assert_eq!(choose(""), Some(0));
        assert_eq!(choose("*/*"), Some(0));
        assert_eq!(choose("*/*;q=0.1, image/*;q=0.2"), Some(2));
        assert_eq!(choose("text/*;q=0.3, text/html;q=0.7, */*;q=0.5"), Some(0));
        assert_eq!(choose("text/html;q=0.2, */*;q=0.9"), Some(1));
        assert_eq!(choose("text/html;q=0, application/json;q=0, image/png;q=0"), None);
        assert_eq!(choose("APPLICATION/JSON; charset=\"a,b;q=0\""), Some(1));
        assert_eq!(choose("application/json;q=0.5;ext=1, image/png;Q=0.6"), Some(2));
    }

    #[test]
    fn ranks_all_allowed_types() {
        let offers = ["text/html", "application/json", "image/png"];
        let rank = |accept| MediaType::rank(accept, &offers);
        assert_eq!(rank(""), [0, 1, 2]);
        assert_eq!(rank("image/png, */*;q=0.5"), [2, 0, 1]);
        assert_eq!(rank("application/json;q=0.2, text/*"), [0, 1]);
        assert_eq!(rank("audio/*"), [0_usize; 0]);
    }

    #[test]
    fn malformed_ranges_are_skipped() {
        for bad in ["json", "a/b/c", "/", "*/json", "a/b;q=2", "a/b;q=0.1234", "a/b;q=-1", "a/b;q=", "é/b", "a/b;q=1.5"]
        {
            assert_eq!(MediaType::parse(bad), None, "{bad}");
            assert_eq!(MediaType::choose_index(&format!("{bad}, image/png"), &["a/b", "image/png"]), Some(1), "{bad}");
        }
        assert_eq!(MediaType::parse("a/b;q=0.25").map(|range| range.quality()), Some(0.25));
        assert_eq!(MediaType::choose_index("nonsense", &["a/b"]), None);
    }
}
