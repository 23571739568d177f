//! The variables of OpenTelemetry that an exporter takes
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>). An empty variable counts as unset.

use std::time::Duration;

use callboard_http_client::{Call, Origin, Protocol};
use percent_encoding::percent_decode_str;
use thiserror::Error;

use super::OtlpConfig;

/// The collector, if no setting names one.
pub const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// The attribute that names the service.
const SERVICE: &str = "service.name";

/// A variable that cannot be read. The text has no values: headers are often secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{variable}: expected {expected}")]
pub struct OtlpEnvError {
    variable: &'static str,
    expected: &'static str,
}

impl OtlpConfig {
    /// The collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names, if any. Spans are posted to `/v1/traces` below it.
    ///
    /// # Errors
    ///
    /// The variable is not the URL of a server.
    pub fn endpoint_from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Origin>, OtlpEnvError> {
        let endpoint = set(&variable, OTEL_ENDPOINT).map(|text| text.parse());
        let expected = "a URL such as http://127.0.0.1:4318";
        endpoint.transpose().map_err(|_| OtlpEnvError { variable: OTEL_ENDPOINT, expected })
    }

    /// Takes headers, timeout and the attributes of the service from `OTEL_EXPORTER_OTLP_HEADERS`,
    /// `OTEL_EXPORTER_OTLP_TIMEOUT` (milliseconds), `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`. A field
    /// without a variable stays.
    ///
    /// ```
    /// use callboard_telemetry::OtlpConfig;
    ///
    /// let config = OtlpConfig::new("http://127.0.0.1:4318".parse()?);
    /// let config = config.with_env(|name| (name == "OTEL_SERVICE_NAME").then(|| "checkout".to_owned()))?;
    /// assert_eq!(config.service, "checkout");
    /// // In a program: `config.with_env(|name| std::env::var(name).ok())`.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first variable that cannot be read.
    pub fn with_env(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self, OtlpEnvError> {
        if let Some(text) = set(&variable, HEADERS) {
            let wrong = || OtlpEnvError { variable: HEADERS, expected: "name=value pairs with a comma between two" };
            self.headers = pairs(&text).ok_or_else(wrong)?;
            let mut call = Call::post("/", "text/plain", "");
            call.headers.clone_from(&self.headers);
            call.prepare(&self.endpoint, Protocol::Http1).map_err(|_| wrong())?;
        }
        if let Some(text) = set(&variable, TIMEOUT) {
            let millis = text.trim().parse().ok().filter(|millis| *millis > 0);
            let wrong = OtlpEnvError { variable: TIMEOUT, expected: "milliseconds, at least 1" };
            self.timeout = Duration::from_millis(millis.ok_or(wrong)?);
        }
        if let Some(text) = set(&variable, RESOURCE_ATTRIBUTES) {
            let expected = "key=value pairs with a comma between two";
            let mut attributes = pairs(&text).ok_or(OtlpEnvError { variable: RESOURCE_ATTRIBUTES, expected })?;
            attributes.retain(|(key, value)| {
                let is_service = key == SERVICE;
                if is_service {
                    self.service.clone_from(value);
                }
                !is_service
            });
            self.attributes = attributes;
        }
        if let Some(name) = set(&variable, SERVICE_NAME) {
            self.service = name;
        }
        Ok(self)
    }
}

fn set(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).filter(|text| !text.is_empty())
}

/// `a=1,b=2`, with percent-encoded values.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        (!key.trim().is_empty()).then(|| (key.trim().to_owned(), value.into_owned()))
    };
    pairs.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<OtlpConfig, OtlpEnvError> {
        let config = OtlpConfig::new("http://127.0.0.1:4318".parse().unwrap());
        config.with_env(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_variables_are_read_as_the_specification_writes_them() {
        let config = read(&[
            (HEADERS, "api-key=s%3Dcret%20x, x-tenant = one ,"),
            (TIMEOUT, "250"),
            (RESOURCE_ATTRIBUTES, "service.name=other,deployment.environment=pro%64,empty="),
            (SERVICE_NAME, "checkout"),
        ]);
        let config = config.unwrap();
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(config.headers, owned(&[("api-key", "s=cret x"), ("x-tenant", "one")]));
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(config.attributes, owned(&[("deployment.environment", "prod"), ("empty", "")]));
        assert_eq!(config.service, "checkout");
        assert!(!format!("{config:?}").contains("cret"), "{config:?}");
        assert_eq!(read(&[(RESOURCE_ATTRIBUTES, "service.name=other")]).unwrap().service, "other");
        assert_eq!(read(&[(SERVICE_NAME, ""), (TIMEOUT, "")]).unwrap().service, "callboard");
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_named_without_its_value() {
        for (name, text) in [
            (HEADERS, "secret"),
            (HEADERS, "=secret"),
            (HEADERS, "a b=secret"),
            (HEADERS, "a=secret%0A"),
            (TIMEOUT, "0"),
            (TIMEOUT, "10s"),
            (RESOURCE_ATTRIBUTES, "secret"),
            (RESOURCE_ATTRIBUTES, "a=secret%ff"),
        ] {
            let error = read(&[(name, text)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: expected ")) && !error.contains("secret"), "{text}: {error}");
        }
        let endpoint = |text: &str| OtlpConfig::endpoint_from_env(|_| Some(text.to_owned()));
        assert_eq!(endpoint("").unwrap(), None);
        assert_eq!(endpoint("http://host:4318/base").unwrap().unwrap().to_string(), "http://host:4318/base");
        assert!(endpoint("unix:///run/collector").is_err());
    }
}
