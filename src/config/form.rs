//! The forms a value may have: how each is read, what it expects, how it is shown.
//!
//! The same form reads a flag, a variable and a line of the file, so the three cannot disagree on what is valid. A form
//! refuses with one message, `expected …, found …`; the expectation names the limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use callboard_http::client::Origin;
use callboard_http::{Cors, Hosts, RateLimit, SampleRatio};
use toml::de::DeValue;

use super::units;

/// A value before it is read: text from the command line or the environment, or a value of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'a> {
    Text(&'a str),
    Toml(&'a DeValue<'a>),
}

impl Raw<'_> {
    /// The text, if it is text.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Toml(value) => value.as_str(),
        }
    }

    /// A whole number: an integer of the file, or digits elsewhere. A number in quotes is text, and refused.
    fn integer(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(value) => {
                let integer = value.as_integer()?;
                u64::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
        }
    }

    /// How an error message shows it.
    pub(crate) fn found(&self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Toml(DeValue::String(text)) => format!("{text:?}"),
            Self::Toml(DeValue::Integer(integer)) => integer.to_string(),
            Self::Toml(DeValue::Float(float)) => float.to_string(),
            Self::Toml(DeValue::Boolean(boolean)) => boolean.to_string(),
            Self::Toml(other) => format!("a value of type {}", other.type_str()),
        }
    }
}

/// One form.
pub(crate) trait Form {
    /// What it is read into.
    type Value;

    /// `None` when it is not of this form or out of range.
    fn read(&self, raw: Raw<'_>) -> Option<Self::Value>;

    /// Completes "expected …".
    fn expected(&self) -> String;

    /// As a user would write it.
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
        self.0.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = self.0.iter().map(|(word, _)| format!("{word:?}")).collect();
        format!("one of {}", words.join(", "))
    }

    fn show(&self, value: &T) -> String {
        self.0.iter().find(|(_, other)| other == value).map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
}

/// A value that may be left out, and is `none` then.
#[derive(Clone, Debug)]
pub(crate) struct Maybe<F>(pub(crate) F);

impl<F: Form> Form for Maybe<F> {
    type Value = Option<F::Value>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<F::Value>> {
        self.0.read(raw).map(Some)
    }

    fn expected(&self) -> String {
        self.0.expected()
    }

    fn show(&self, value: &Option<F::Value>) -> String {
        value.as_ref().map_or_else(|| "none".to_owned(), |value| self.0.show(value))
    }
}

/// A list of different CPU cores by their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Cores(pub(crate) RangeInclusive<usize>);

impl Form for Cores {
    type Value = Vec<usize>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<usize>> {
        let Raw::Toml(value) = raw else { return None };
        let number = Count(self.0.clone());
        let cores = value.as_array()?.iter().map(|core| number.read(Raw::Toml(core.get_ref())));
        let cores: Vec<usize> = cores.collect::<Option<_>>()?;
        let mut distinct = cores.clone();
        distinct.sort_unstable();
        distinct.dedup();
        (!cores.is_empty() && distinct.len() == cores.len()).then_some(cores)
    }

    fn expected(&self) -> String {
        format!("a list of different cores from {} to {}, such as [0, 1]", self.0.start(), self.0.end())
    }

    fn show(&self, value: &Vec<usize>) -> String {
        if value.is_empty() { "any".to_owned() } else { format!("{value:?}") }
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

/// An address to listen on. `localhost` is 127.0.0.1; other names are not looked up, because a listener that depends on a
/// name server comes up on another interface the day the name changes.
#[derive(Clone, Debug)]
pub(crate) struct Listen;

impl Form for Listen {
    type Value = SocketAddr;

    fn read(&self, raw: Raw<'_>) -> Option<SocketAddr> {
        let text = raw.text()?;
        if let Some(port) = text.strip_prefix("localhost:") {
            return Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?)));
        }
        text.parse().ok()
    }

    fn expected(&self) -> String {
        "an IP address and port, such as \"127.0.0.1:8000\" (port 0: any free one)".to_owned()
    }

    fn show(&self, value: &SocketAddr) -> String {
        value.to_string()
    }
}

/// An address to listen on, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct MaybeListen;

impl Form for MaybeListen {
    type Value = Option<SocketAddr>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<SocketAddr>> {
        match raw.text()? {
            NONE => Some(None),
            _ => Listen.read(raw).map(Some),
        }
    }

    fn expected(&self) -> String {
        format!("{}, or \"{NONE}\"", Listen.expected())
    }

    fn show(&self, value: &Option<SocketAddr>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), |address| Listen.show(address))
    }
}

/// Where the admin listener is: an address, `off`, or `auto`.
#[derive(Clone, Debug)]
pub(crate) struct AdminListen;

/// Where a listener is that may not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// On loopback, at the usual port, where that is free.
    Auto,
    /// Nowhere.
    Off,
    /// Here.
    At(SocketAddr),
}

const OFF: &str = "off";

impl Form for AdminListen {
    type Value = AdminAddress;

    fn read(&self, raw: Raw<'_>) -> Option<AdminAddress> {
        match raw.text()? {
            AUTO => Some(AdminAddress::Auto),
            OFF => Some(AdminAddress::Off),
            _ => Listen.read(raw).map(AdminAddress::At),
        }
    }

    fn expected(&self) -> String {
        format!("\"{AUTO}\", \"{OFF}\", or {}", Listen.expected())
    }

    fn show(&self, value: &AdminAddress) -> String {
        match value {
            AdminAddress::Auto => AUTO.to_owned(),
            AdminAddress::Off => OFF.to_owned(),
            AdminAddress::At(address) => Listen.show(address),
        }
    }
}

/// Addresses of other nodes, with commas between them, or `none`; in the file a list as well.
#[derive(Clone, Debug)]
pub(crate) struct Peers;

impl Form for Peers {
    type Value = Vec<SocketAddr>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<SocketAddr>> {
        if let Raw::Toml(DeValue::Array(items)) = raw {
            return items.iter().map(|item| Listen.read(Raw::Toml(item.get_ref()))).collect();
        }
        match raw.text()? {
            NONE => Some(Vec::new()),
            text => text.split(',').map(|address| Listen.read(Raw::Text(address.trim()))).collect(),
        }
    }

    fn expected(&self) -> String {
        format!("addresses such as \"127.0.0.1:4433\", with commas between them, or \"{NONE}\"")
    }

    fn show(&self, value: &Vec<SocketAddr>) -> String {
        match value.as_slice() {
            [] => NONE.to_owned(),
            addresses => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }
}

/// The path of a file, or `none`. Whether it is there is found out by whoever opens it.
#[derive(Clone, Debug)]
pub(crate) struct FilePath;

const NONE: &str = "none";

impl Form for FilePath {
    type Value = Option<PathBuf>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<PathBuf>> {
        match raw.text()? {
            "" => None,
            NONE => Some(None),
            path => Some(Some(PathBuf::from(path))),
        }
    }

    fn expected(&self) -> String {
        format!("the path of a file, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), |path| path.display().to_string())
    }
}

/// Where API keys are: a file, `env:NAME` for a variable of the environment, or `none`. A key itself has no place on a
/// command line, which every process of the machine can read.
#[derive(Clone, Debug)]
pub(crate) struct KeysFrom;

/// Where secrets are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Variable(String),
}

const VARIABLE: &str = "env:";

impl Form for KeysFrom {
    type Value = Option<SecretSource>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<SecretSource>> {
        let text = raw.text()?;
        match text.strip_prefix(VARIABLE) {
            Some("") => None,
            Some(name) => Some(Some(SecretSource::Variable(name.to_owned()))),
            None => Some(FilePath.read(Raw::Text(text))?.map(SecretSource::File)),
        }
    }

    fn expected(&self) -> String {
        format!("the path of a file, \"{VARIABLE}NAME\" for a variable of the environment, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<SecretSource>) -> String {
        match value {
            None => NONE.to_owned(),
            Some(SecretSource::File(path)) => path.display().to_string(),
            Some(SecretSource::Variable(name)) => format!("{VARIABLE}{name}"),
        }
    }
}

/// A number of requests in a time, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct Rate;

impl Form for Rate {
    type Value = Option<RateLimit>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<RateLimit>> {
        match raw.text()? {
            NONE => Some(None),
            text => RateLimit::parse(text).ok().map(Some),
        }
    }

    fn expected(&self) -> String {
        let most = RateLimit::MAX_REQUESTS;
        format!("1 to {most} requests in a time, such as \"20/s\", \"600/m\" or \"5000/h\", or \"{NONE}\"")
    }

    fn show(&self, value: &Option<RateLimit>) -> String {
        value.map_or_else(|| NONE.to_owned(), |limit| limit.to_string())
    }
}

/// Where spans go: a URL, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct Collector;

impl Form for Collector {
    type Value = Option<Origin>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<Origin>> {
        match raw.text()? {
            NONE => Some(None),
            // Without its scheme it would be read, too, but nobody writes a collector so.
            url if url.starts_with("http://") => url.parse().ok().map(Some),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        format!("a URL such as \"http://127.0.0.1:4318\", without TLS, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<Origin>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), Origin::to_string)
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
        "a number from 0 to 1 with at most six digits behind the point".to_owned()
    }

    fn show(&self, value: &SampleRatio) -> String {
        value.to_string()
    }
}

/// Origins of web pages: a list in the file, words between commas elsewhere, `*` for all, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct Pages;

impl Form for Pages {
    type Value = Option<Cors>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<Cors>> {
        if let Some(text) = raw.text() {
            return match text {
                NONE => Some(None),
                text => Cors::parse(text.split(',').map(str::trim)).ok().map(Some),
            };
        }
        let Raw::Toml(value) = raw else { return None };
        let origins: Option<Vec<&str>> = value.as_array()?.iter().map(|origin| origin.get_ref().as_str()).collect();
        Cors::parse(origins?).ok().map(Some)
    }

    fn expected(&self) -> String {
        format!("origins such as \"https://app.example.org\", \"*\" for all, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<Cors>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), ToString::to_string)
    }
}

/// Names of hosts: a list in the file, words between commas elsewhere, `*` for all, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct HostNames;

impl Form for HostNames {
    type Value = Hosts;

    fn read(&self, raw: Raw<'_>) -> Option<Hosts> {
        match raw {
            Raw::Toml(DeValue::Array(names)) => {
                let names: Option<Vec<&str>> = names.iter().map(|name| name.get_ref().as_str()).collect();
                Hosts::parse(names?).ok()
            }
            _ => match raw.text()? {
                NONE => Some(Hosts::default()),
                text => Hosts::parse(text.split(',').map(str::trim)).ok(),
            },
        }
    }

    fn expected(&self) -> String {
        format!("names such as \"models.example.org\", \"*\" for all, or \"{NONE}\"")
    }

    fn show(&self, value: &Hosts) -> String {
        if value.is_empty() { NONE.to_owned() } else { value.to_string() }
    }
}

/// A number of bytes within limits, or `none` for no number at all.
#[derive(Clone, Debug)]
pub(crate) struct MaybeBytes(pub(crate) Bytes);

impl Form for MaybeBytes {
    type Value = Option<u64>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<u64>> {
        match raw.text()? {
            NONE => Some(None),
            _ => self.0.read(raw).map(Some),
        }
    }

    fn expected(&self) -> String {
        format!("{}, or \"{NONE}\"", self.0.expected())
    }

    fn show(&self, value: &Option<u64>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), |bytes| self.0.show(bytes))
    }
}

/// A name or version for people: one short line, or `auto` for whatever is at hand.
#[derive(Clone, Debug)]
pub(crate) struct Label;

const AUTO: &str = "auto";

/// A title that is longer is a description.
const MAX_LABEL_CHARS: usize = 100;

impl Form for Label {
    type Value = Option<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<String>> {
        let text = raw.text()?;
        if text == AUTO {
            return Some(None);
        }
        let is_line = !text.trim().is_empty() && !text.chars().any(char::is_control);
        (is_line && text.chars().count() <= MAX_LABEL_CHARS).then(|| Some(text.to_owned()))
    }

    fn expected(&self) -> String {
        format!("\"{AUTO}\" or one line of at most {MAX_LABEL_CHARS} characters")
    }

    fn show(&self, value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| AUTO.to_owned())
    }
}

/// Which log lines to write: a level, or `target=level` pairs, separated by commas.
///
/// A lone word that is no level is refused. Elsewhere it would be a target at its most talkative level, and a misspelt
/// `inof` would silence the log.
#[derive(Clone, Debug)]
pub(crate) struct LogFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Form for LogFilter {
    type Value = String;

    fn read(&self, raw: Raw<'_>) -> Option<String> {
        let text = raw.text()?;
        text.split(',').all(is_directive).then(|| text.to_owned())
    }

    fn expected(&self) -> String {
        "a log filter of levels (off, error, warn, info, debug, trace), such as \"info\" or \"warn,callboard=debug\""
            .to_owned()
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

fn is_directive(text: &str) -> bool {
    let is_target = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (target, level) = text.split_once('=').unwrap_or(("any", text));
    !target.is_empty() && target.chars().all(is_target) && LEVELS.contains(&level)
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
    fn both_ends_of_a_range_are_inside() {
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
    fn a_ratio_is_a_number_and_a_collector_a_url_that_is_spoken_to_without_tls() {
        for value in ["0.25", "1", "0"] {
            assert_eq!(Ratio.read(Raw::Toml(&toml(value))), Ratio.read(Raw::Text(value)), "{value}");
            assert!(Ratio.read(Raw::Text(value)).is_some(), "{value}");
        }
        for value in ["2", "-0.5", "\"0.5\"", "true"] {
            assert_eq!(Ratio.read(Raw::Toml(&toml(value))), None, "{value}");
        }
        for text in ["https://collector:4318", "collector:4318", "", "http://", "http://user@collector"] {
            assert_eq!(Collector.read(Raw::Text(text)), None, "{text}");
        }
        let collector = Collector.read(Raw::Text("http://collector:4318/")).unwrap();
        assert_eq!(Collector.show(&collector), "http://collector:4318");
    }

    #[test]
    fn a_misspelt_level_is_not_taken_for_a_target() {
        for text in ["info", "warn,callboard=debug", "off,callboard_http::accept=trace"] {
            assert!(LogFilter.read(Raw::Text(text)).is_some(), "{text}");
        }
        for text in ["", "inof", "info,", "callboard=loud", "=info", "a b=info"] {
            assert!(LogFilter.read(Raw::Text(text)).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_out_of_range_is_ever_read(low in 0_usize..100, width in 0_usize..100, typed in 0_usize..300) {
            let count = Count(low..=low + width);
            let read = count.read(Raw::Text(&typed.to_string()));
            prop_assert_eq!(read.is_some(), (low..=low + width).contains(&typed));
        }
    }
}
