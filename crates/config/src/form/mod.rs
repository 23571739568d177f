//! The forms of a value: its parser, its expectation in errors, its text.
//!
//! The same form reads a flag, a variable and a line of the file, so all three agree on what is valid. A form refuses
//! with one message, `expected …, found …`; the expectation names the limits.

mod network;
mod replicas;
mod weights;
mod words;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use callboard_http::{RateLimit, SampleRatio};
use callboard_http_client::without_credentials;
use toml::de::DeValue;

use super::units;

pub use self::network::AdminAddress;
pub(crate) use self::network::{
    AdminListen, Advertised, CALL_METHODS, Collector, FileHosts, HeaderNames, HostNames, Listen, Methods, OfMembers,
    OptionalListen, Pages, Peers, Proxies, QueryNames, SecureUrl, SecureUrls,
};
pub(crate) use self::replicas::ReplicaBounds;
pub use self::replicas::Replicas;
pub(crate) use self::weights::Weights;
pub(crate) use self::words::{FilePath, KeysFrom, Label, LogFilter, ModelNames, Names, StoreForm};
pub use self::words::{LogFormat, SecretSource, StateStoreAt};

/// No value.
pub(crate) const NONE: &str = "none";

/// Chosen at start-up.
pub(crate) const AUTO: &str = "auto";

/// A value before it is read: text from the command line or the environment, or a value of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'a> {
    Text(&'a str),
    Toml(&'a DeValue<'a>),
}

impl Raw<'_> {
    /// The text, if the value is text.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Toml(value) => value.as_str(),
        }
    }

    /// Some texts: a list in the file, else separated by commas; `none` is the empty list.
    fn texts(&self) -> Option<Vec<&str>> {
        match self {
            Self::Toml(DeValue::Array(items)) => items.iter().map(|item| item.get_ref().as_str()).collect(),
            _ => match self.text()? {
                NONE => Some(Vec::new()),
                text => Some(text.split(',').map(str::trim).collect()),
            },
        }
    }

    /// A whole number: an integer in the file, else digits. A number in quotes is text, and refused.
    pub(crate) fn integer(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(value) => {
                let integer = value.as_integer()?;
                u64::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
        }
    }

    /// The value as error messages show it. Credentials in an address are not shown.
    pub(crate) fn found(&self) -> String {
        match self {
            Self::Text(text) => shown(text),
            Self::Toml(DeValue::String(text)) => shown(text),
            Self::Toml(DeValue::Integer(integer)) => integer.to_string(),
            Self::Toml(DeValue::Float(float)) => float.to_string(),
            Self::Toml(DeValue::Boolean(boolean)) => boolean.to_string(),
            Self::Toml(other) => format!("a value of type {}", other.type_str()),
        }
    }
}

/// A text that was refused. What is not the name of a variable may be its value.
fn shown(text: &str) -> String {
    let begin = text.starts_with(words::VARIABLE).then(|| format!("{}…", words::VARIABLE).into());
    format!("{:?}", begin.unwrap_or_else(|| without_credentials(text)))
}

pub(crate) trait Form {
    /// The type of the result.
    type Value;

    /// `None` if the value has another form or is out of range.
    fn read(&self, raw: Raw<'_>) -> Option<Self::Value>;

    /// Completes "expected …".
    fn expected(&self) -> String;

    /// The value as a user would write it.
    fn show(&self, value: &Self::Value) -> String;
}

/// A time span within limits.
#[derive(Clone, Debug)]
pub(crate) struct Span(pub(crate) RangeInclusive<Duration>);

impl Form for Span {
    type Value = Duration;

    fn read(&self, raw: Raw<'_>) -> Option<Duration> {
        units::parse_duration(raw.text()?).filter(|span| self.0.contains(span))
    }

    fn expected(&self) -> String {
        let [from, to] = [self.0.start(), self.0.end()].map(|span| units::show_duration(*span));
        format!("a duration from {from} to {to}, such as \"250ms\" or \"30s\"")
    }

    fn show(&self, value: &Duration) -> String {
        units::show_duration(*value)
    }
}

/// How often something is done; `true` is the usual time.
#[derive(Clone, Debug)]
pub(crate) struct Interval(pub(crate) Span);

/// Soon for people who copy a file, and rare for a disk.
const USUAL_INTERVAL: Duration = Duration::from_secs(2);

impl Form for Interval {
    type Value = Duration;

    fn read(&self, raw: Raw<'_>) -> Option<Duration> {
        match raw {
            Raw::Text("true") | Raw::Toml(DeValue::Boolean(true)) => Some(USUAL_INTERVAL),
            raw => self.0.read(raw),
        }
    }

    fn expected(&self) -> String {
        self.0.expected()
    }

    fn show(&self, value: &Duration) -> String {
        self.0.show(value)
    }
}

/// A number of bytes within limits.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub(crate) RangeInclusive<u64>);

impl Form for Bytes {
    type Value = u64;

    fn read(&self, raw: Raw<'_>) -> Option<u64> {
        units::parse_bytes(raw.text()?).filter(|bytes| self.0.contains(bytes))
    }

    fn expected(&self) -> String {
        let [from, to] = [self.0.start(), self.0.end()].map(|bytes| units::show_bytes(*bytes));
        format!("a size from {from} to {to}, such as \"64MiB\"")
    }

    fn show(&self, value: &u64) -> String {
        units::show_bytes(*value)
    }
}

/// A number of things within limits.
#[derive(Clone, Debug)]
pub(crate) struct Count(pub(crate) RangeInclusive<usize>);

impl Form for Count {
    type Value = usize;

    fn read(&self, raw: Raw<'_>) -> Option<usize> {
        let count = usize::try_from(raw.integer()?).ok()?;
        self.0.contains(&count).then_some(count)
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }

    fn show(&self, value: &usize) -> String {
        value.to_string()
    }
}

/// One of a few words.
#[derive(Debug)]
pub(crate) struct OneOf<T: 'static>(pub(crate) &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Form for OneOf<T> {
    type Value = T;

    fn read(&self, raw: Raw<'_>) -> Option<T> {
        let text = raw.text()?;
        self.0.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
    }

    fn expected(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|(name, _)| format!("{name:?}")).collect();
        format!("one of {}", names.join(", "))
    }

    fn show(&self, value: &T) -> String {
        self.0.iter().find(|(_, other)| other == value).map_or_else(String::new, |(name, _)| (*name).to_owned())
    }
}

/// A value, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct OrNone<F>(pub(crate) F);

impl<F: Form> Form for OrNone<F> {
    type Value = Option<F::Value>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<F::Value>> {
        match raw.text() {
            Some(NONE) => Some(None),
            _ => self.0.read(raw).map(Some),
        }
    }

    fn expected(&self) -> String {
        format!("{}, or \"{NONE}\"", self.0.expected())
    }

    fn show(&self, value: &Option<F::Value>) -> String {
        show_or_none(&self.0, value.as_ref())
    }
}

/// A value that may be missing, shown as `none`.
#[derive(Clone, Debug)]
pub(crate) struct Optional<F>(pub(crate) F);

impl<F: Form> Form for Optional<F> {
    type Value = Option<F::Value>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<F::Value>> {
        self.0.read(raw).map(Some)
    }

    fn expected(&self) -> String {
        self.0.expected()
    }

    fn show(&self, value: &Option<F::Value>) -> String {
        show_or_none(&self.0, value.as_ref())
    }
}

fn show_or_none<F: Form>(form: &F, value: Option<&F::Value>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| form.show(value))
}

/// The CPU cores of each replica by their numbers: one, or a list of different ones.
#[derive(Clone, Debug)]
pub(crate) struct Cores(pub(crate) RangeInclusive<usize>);

impl Form for Cores {
    type Value = Vec<Vec<usize>>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<Vec<usize>>> {
        let Raw::Toml(value) = raw else { return None };
        let number = |core: &DeValue<'_>| Count(self.0.clone()).read(Raw::Toml(core));
        let of_replica = |own: &DeValue<'_>| match own.as_array() {
            Some(own) => own.iter().map(|core| number(core.get_ref())).collect(),
            None => Some(vec![number(own)?]),
        };
        let cores = value.as_array()?.iter().map(|own| of_replica(own.get_ref()));
        let cores: Vec<Vec<usize>> = cores.collect::<Option<_>>()?;
        let is_set = |own: &Vec<usize>| !own.is_empty() && own.iter().collect::<BTreeSet<_>>().len() == own.len();
        (!cores.is_empty() && cores.iter().all(is_set)).then_some(cores)
    }

    fn expected(&self) -> String {
        let (least, most) = (self.0.start(), self.0.end());
        format!("the cores of each replica by their numbers from {least} to {most}, such as [0, 1] or [[0, 1], [2, 3]]")
    }

    fn show(&self, value: &Vec<Vec<usize>>) -> String {
        if value.is_empty() {
            return "any".to_owned();
        }
        let of_replica = |own: &Vec<usize>| if let [core] = &**own { core.to_string() } else { format!("{own:?}") };
        format!("[{}]", value.iter().map(of_replica).collect::<Vec<_>>().join(", "))
    }
}

/// Yes or no.
#[derive(Clone, Debug)]
pub(crate) struct Flag;

impl Form for Flag {
    type Value = bool;

    fn read(&self, raw: Raw<'_>) -> Option<bool> {
        match raw {
            Raw::Text(text) => text.parse().ok(),
            Raw::Toml(value) => value.as_bool(),
        }
    }

    fn expected(&self) -> String {
        "true or false".to_owned()
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// A number of requests in a time.
#[derive(Clone, Debug)]
pub(crate) struct Rate;

impl Form for Rate {
    type Value = RateLimit;

    fn read(&self, raw: Raw<'_>) -> Option<RateLimit> {
        RateLimit::parse(raw.text()?).ok()
    }

    fn expected(&self) -> String {
        let most = RateLimit::MAX_REQUESTS;
        format!("1 to {most} requests in a time, such as \"20/s\", \"600/m\" or \"5000/h\"")
    }

    fn show(&self, value: &RateLimit) -> String {
        value.to_string()
    }
}

/// A part of all requests: a number from 0 to 1.
#[derive(Clone, Debug)]
pub(crate) struct Ratio;

impl Form for Ratio {
    type Value = SampleRatio;

    fn read(&self, raw: Raw<'_>) -> Option<SampleRatio> {
        match raw {
            Raw::Text(text) => text.parse().ok(),
            Raw::Toml(DeValue::Float(float)) => float.as_str().parse().ok(),
            Raw::Toml(_) => raw.integer()?.to_string().parse().ok(),
        }
    }

    fn expected(&self) -> String {
        "a number from 0 to 1 with at most six digits after the point".to_owned()
    }

    fn show(&self, value: &SampleRatio) -> String {
        value.to_string()
    }
}

/// A part of a whole, written as `5%`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percent;

impl Form for Percent {
    type Value = f64;

    fn read(&self, raw: Raw<'_>) -> Option<f64> {
        let number = raw.text()?.strip_suffix('%')?;
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent: f64 = number.parse().ok().filter(|_| is_plain)?;
        (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
    }

    fn expected(&self) -> String {
        "a part such as \"5%\" or \"0.5%\", at most 100%".to_owned()
    }

    fn show(&self, value: &f64) -> String {
        format!("{}%", value * 100.0)
    }
}

/// A number, at least this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor(pub(crate) f64);

impl Form for Factor {
    type Value = f64;

    fn read(&self, raw: Raw<'_>) -> Option<f64> {
        let number: f64 = match raw {
            Raw::Text(text) => text.parse().ok()?,
            Raw::Toml(DeValue::Float(float)) => float.as_str().parse().ok()?,
            Raw::Toml(_) => raw.integer()? as f64,
        };
        (number.is_finite() && number >= self.0).then_some(number)
    }

    fn expected(&self) -> String {
        format!("a number of at least {}", self.0)
    }

    fn show(&self, value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span() -> Span {
        Span(Duration::from_millis(1)..=Duration::from_secs(3600))
    }

    fn toml(text: &str) -> DeValue<'_> {
        DeValue::parse(text).unwrap().into_inner()
    }

    #[test]
    fn a_range_includes_both_ends() {
        for text in ["1ms", "1h", "60m"] {
            assert!(span().read(Raw::Text(text)).is_some(), "{text}");
        }
        for text in ["0s", "999us", "61m"] {
            assert!(span().read(Raw::Text(text)).is_none(), "{text}");
        }
        assert_eq!(span().expected(), "a duration from 1ms to 1h, such as \"250ms\" or \"30s\"");
    }

    #[test]
    fn a_number_in_quotes_is_not_a_number_and_a_bare_number_is_not_a_duration() {
        let count = Count(1..=64);
        assert_eq!(count.read(Raw::Toml(&toml("0x20"))), Some(32));
        assert_eq!(count.read(Raw::Text("32")), Some(32));
        assert_eq!(count.read(Raw::Toml(&toml("\"32\""))), None);
        assert_eq!(count.read(Raw::Toml(&toml("-1"))), None);
        assert_eq!(count.read(Raw::Toml(&toml("65"))), None);
        assert_eq!(span().read(Raw::Toml(&toml("30"))), None);
    }

    #[test]
    fn addresses_need_a_port_and_no_name_server() {
        let read = |text| Listen.read(Raw::Text(text)).map(|address| address.to_string());
        assert_eq!(read("localhost:80").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(read("[::1]:0").as_deref(), Some("[::1]:0"));
        for text in ["8000", ":8000", "127.0.0.1", "example.org:80", "localhost:65536"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_ratio_is_a_number_and_a_collector_is_a_url_with_a_scheme() {
        for value in ["0.25", "1", "0"] {
            assert_eq!(Ratio.read(Raw::Toml(&toml(value))), Ratio.read(Raw::Text(value)), "{value}");
            assert!(Ratio.read(Raw::Text(value)).is_some(), "{value}");
        }
        for value in ["2", "-0.5", "\"0.5\"", "true"] {
            assert_eq!(Ratio.read(Raw::Toml(&toml(value))), None, "{value}");
        }
        for text in ["ftp://collector:4318", "collector:4318", "", "http://", "http://user@collector"] {
            assert_eq!(Collector.read(Raw::Text(text)), None, "{text}");
        }
        for url in ["http://collector:4318", "https://collector:4318"] {
            let collector = Collector.read(Raw::Text(&format!("{url}/"))).unwrap();
            assert_eq!(Collector.show(&collector), url);
        }
    }

    #[test]
    fn a_misspelt_level_is_not_read_as_a_target() {
        for text in ["info", "warn,callboard=debug", "off,callboard_http::accept=trace"] {
            assert!(LogFilter.read(Raw::Text(text)).is_some(), "{text}");
        }
        for text in ["", "inof", "info,", "callboard=loud", "=info", "a b=info"] {
            assert!(LogFilter.read(Raw::Text(text)).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_value_out_of_range_is_never_read(low in 0_usize..100, width in 0_usize..100, typed in 0_usize..300) {
            let count = Count(low..=low + width);
            let read = count.read(Raw::Text(&typed.to_string()));
            prop_assert_eq!(read.is_some(), (low..=low + width).contains(&typed));
        }
    }
}
