//! The layers a setting may come from, and which of them wins: flag, then environment, then file, then default. Two
//! have one more: the collector of spans between file and default, `OTEL_EXPORTER_OTLP_ENDPOINT`, and the address of
//! HTTP below the flag, `PORT` of Knative.

use callboard_http::OTEL_ENDPOINT;

use super::document::Section;
use super::error::{ConfigError, Place};
use super::form::{Form, Raw};
use super::nearest::Hint;
use super::setting::{ALL, HTTP, Name, OTLP_ENDPOINT, Setting};
use super::source::{Source, Sourced};

/// The prefix of our variables.
pub const ENV_PREFIX: &str = "CALLBOARD_";

/// The values of the command line by flag name, not parsed yet.
pub type Flags = Vec<(&'static str, String)>;

/// Our variables in the environment of this process, and the collector of OpenTelemetry's own variable.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    own: Vec<(&'static Name, String)>,
    /// It is for every program on the machine, so it is weaker than our file.
    collector: Option<String>,
    /// The port that Knative sends requests to. Other platforms set a `PORT` that is not meant for this program, so it
    /// counts beside `K_SERVICE` alone.
    port: Option<String>,
}

/// Knative's name of the service, and its port.
const KNATIVE: [&str; 2] = ["K_SERVICE", "PORT"];

impl Environment {
    /// Picks our variables out of all of them.
    ///
    /// # Errors
    ///
    /// A variable with our prefix that names no setting.
    pub fn try_new(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let (mut environment, [service, port]) = (Self::default(), KNATIVE);
        let mut is_knative = false;
        for (variable, value) in variables {
            if variable.starts_with(ENV_PREFIX) && !is_service_link(&variable) {
                environment.own.push((setting_of(&variable)?, value));
            } else if variable == OTEL_ENDPOINT && !value.is_empty() {
                environment.collector = Some(value);
            } else if variable == service {
                is_knative = true;
            } else if variable == port {
                environment.port = Some(value);
            }
        }
        environment.port.take_if(|_| !is_knative);
        Ok(environment)
    }

    fn get(&self, name: &Name) -> Option<&str> {
        self.own.iter().find(|(known, _)| known.env == name.env).map(|(_, value)| value.as_str())
    }
}

fn setting_of(variable: &str) -> Result<&'static Name, ConfigError> {
    if let Some(name) = ALL.into_iter().find(|name| name.env == variable) {
        return Ok(name);
    }
    // The key of the file, spelt as a variable, is the best hint.
    let typed = variable.strip_prefix(ENV_PREFIX).unwrap_or(variable).replace('_', "-").to_lowercase();
    let setting = ALL.into_iter().find(|name| name.spellings_of_key().any(|spelling| spelling == typed));
    let hint = match setting {
        Some(name) => Hint::new(name.env, [name.env]),
        None => Hint::new(variable, ALL.iter().map(|name| name.env)),
    };
    Err(ConfigError::UnknownVariable { name: variable.to_owned(), hint })
}

/// Kubernetes gives every pod the addresses of the services in its namespace. A service called `callboard` sets
/// `CALLBOARD_SERVICE_HOST`, `CALLBOARD_PORT_8000_TCP` and similar names, which must not stop the start.
fn is_service_link(variable: &str) -> bool {
    let rest = variable.strip_prefix(ENV_PREFIX).unwrap_or(variable);
    rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_")
}

/// All layers together.
#[derive(Debug)]
pub(crate) struct Layers<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) env: &'a Environment,
    pub(crate) file: Option<Section<'a>>,
}

impl Layers<'_> {
    /// The value of the first layer that has one. Later layers are not read: a flag repairs a broken file for one run.
    pub(crate) fn resolve<F: Form>(&self, setting: &Setting<F>) -> Result<Sourced<F::Value>, ConfigError> {
        let Setting { name, form } = setting;
        if let Some((_, text)) = self.flags.iter().find(|(flag, _)| *flag == name.flag) {
            return read(form, text, Source::Flag(name.flag), Place::Flag(name.flag));
        }
        // An image has a variable of its own for the address, and does not know the port.
        if let Some(port) = self.env.port.as_deref().filter(|_| name.env == HTTP.name.env) {
            let [_, variable] = KNATIVE;
            return read(form, &format!("0.0.0.0:{port}"), Source::Env(variable), Place::Env(variable.to_owned()));
        }
        if let Some(text) = self.env.get(name) {
            return read(form, text, Source::Env(name.env), Place::Env(name.env.to_owned()));
        }
        if let Some(value) = self.in_file(setting)? {
            return Ok(value);
        }
        if let Some(text) = self.env.collector.as_deref().filter(|_| name.env == OTLP_ENDPOINT.name.env) {
            return read(form, text, Source::Env(OTEL_ENDPOINT), Place::Env(OTEL_ENDPOINT.to_owned()));
        }
        read(form, name.default, Source::Default, Place::Flag(name.flag))
    }

    fn in_file<F: Form>(&self, setting: &Setting<F>) -> Result<Option<Sourced<F::Value>>, ConfigError> {
        let (table, key) = setting.name.table_and_key();
        let Some(root) = &self.file else { return Ok(None) };
        match root.section(table)? {
            Some(section) => section.read(key, &setting.form),
            None => Ok(None),
        }
    }
}

fn read<F: Form>(form: &F, text: &str, source: Source, place: Place) -> Result<Sourced<F::Value>, ConfigError> {
    let raw = Raw::Text(text);
    match form.read(raw) {
        Some(value) => Ok(Sourced::new(value, source)),
        None => Err(ConfigError::BadValue { place, expected: form.expected(), found: raw.found() }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::document::Document;
    use super::super::setting::{DEFAULT_TIMEOUT, DRAIN};
    use super::*;
    use proptest::prelude::*;

    fn environment(variables: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        Environment::try_new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn an_unknown_variable_names_the_nearest() {
        let error = environment(&[("CALLBOARD_DEFAULT_TIMOUT", "1s")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "CALLBOARD_DEFAULT_TIMOUT: unknown environment variable; did you mean `CALLBOARD_DEFAULT_TIMEOUT`?"
        );
    }

    #[test]
    fn a_key_of_the_file_as_a_variable_names_the_variable() {
        for (typed, setting) in [("CALLBOARD_LOG_FILTER", "CALLBOARD_LOG"), ("CALLBOARD_LISTEN", "CALLBOARD_HTTP")] {
            let error = environment(&[(typed, "x")]).unwrap_err().to_string();
            assert_eq!(error, format!("{typed}: unknown environment variable; did you mean `{setting}`?"));
        }
    }

    #[test]
    fn other_variables_and_service_links_are_ignored() {
        let links = [
            ("PATH", "/bin"),
            ("CALLBOARD_PORT", "tcp://10.0.0.1:8000"),
            ("CALLBOARD_PORT_8000_TCP_ADDR", "10.0.0.1"),
            ("CALLBOARD_SERVICE_HOST", "10.0.0.1"),
        ];
        assert!(environment(&links).unwrap().own.is_empty());
    }

    #[test]
    fn a_bad_value_names_its_layer() {
        let env = environment(&[("CALLBOARD_DRAIN", "soon")]).unwrap();
        let flags = vec![("default-timeout", "2h".to_owned())];
        let layers = Layers { flags: &flags, env: &env, file: None };
        assert_eq!(
            layers.resolve(&DRAIN).unwrap_err().to_string(),
            "CALLBOARD_DRAIN: expected a duration from 0s to 1h, such as \"250ms\" or \"30s\", found \"soon\""
        );
        assert_eq!(
            layers.resolve(&DEFAULT_TIMEOUT).unwrap_err().to_string(),
            "--default-timeout: expected a duration from 1ms to 1h, such as \"250ms\" or \"30s\", found \"2h\""
        );
    }

    #[test]
    fn the_port_of_knative_is_stronger_than_the_address_of_an_image() {
        let all = [("CALLBOARD_HTTP", "0.0.0.0:8000"), ("PORT", "8080"), ("K_SERVICE", "digits")];
        let resolved = |env: &[(&str, &str)], flags: &Flags| {
            let env = environment(env).unwrap();
            Layers { flags, env: &env, file: None }.resolve(&HTTP).map(|http| (http.value.to_string(), http.source))
        };
        let none = Flags::new();
        assert_eq!(resolved(&all, &none).unwrap(), ("0.0.0.0:8080".to_owned(), Source::Env("PORT")));
        assert_eq!(resolved(&all[..2], &none).unwrap().1, Source::Env("CALLBOARD_HTTP"));
        let flags = vec![("http", "127.0.0.1:1".to_owned())];
        assert_eq!(resolved(&all, &flags).unwrap().1, Source::Flag("http"));
        let wrong = resolved(&[("PORT", "tcp://x"), ("K_SERVICE", "digits")], &none).unwrap_err();
        assert!(wrong.to_string().starts_with("PORT: expected"), "{wrong}");
    }

    proptest! {
        /// The first layer with a value wins, for every subset of layers.
        #[test]
        fn the_strongest_layer_wins(flag: Option<u8>, env: Option<u8>, file: Option<u8>) {
            let seconds = |value: u8| format!("{value}s");
            let flags: Flags = flag.map(|value| ("drain", seconds(value))).into_iter().collect();
            let own = env.map(|value| (&DRAIN.name, seconds(value))).into_iter().collect();
            let env_layer = Environment { own, ..Environment::default() };
            let text = file.map_or_else(String::new, |value| format!("[limits]\ndrain = \"{value}s\"\n"));
            let document = Document::parse(Path::new("f"), &text).unwrap();
            let layers = Layers { flags: &flags, env: &env_layer, file: Some(document.root()) };

            let expected = match (flag, env, file) {
                (Some(value), _, _) => (value, Source::Flag("drain")),
                (_, Some(value), _) => (value, Source::Env("CALLBOARD_DRAIN")),
                (_, _, Some(value)) => (value, Source::File { line: 2 }),
                _ => (30, Source::Default),
            };
            let resolved = layers.resolve(&DRAIN).unwrap();
            prop_assert_eq!(resolved, Sourced::new(Duration::from_secs(expected.0.into()), expected.1));
        }
    }
}
