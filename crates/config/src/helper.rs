//! The helpers of a plan: the result of each `[[process]]` of the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use callboard_process::{HelperConfig, HttpUrl, PythonConfig, Readiness, StopSignal};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::document::Section;
use super::error::ConfigError;
use super::own_keys;
use super::process::{duration, program_in};
use super::source::Sourced;
use super::stage::OwnKey;

/// A process that the node starts before its stages.
#[derive(Clone, Debug)]
pub struct HelperPlan {
    /// Its name, one per plan.
    pub name: Sourced<String>,
    /// Its keys.
    pub keys: HelperKeys,
    /// The keys that were set, with their lines.
    pub own: Vec<OwnKey>,
}

/// The keys of a `[[process]]`, besides its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelperKeys {
    /// The program and its arguments. A program with a slash is relative to the file. Required, without `hooks`.
    #[serde(default, deserialize_with = "command")]
    pub command: Option<Vec<String>>,
    /// The Python file or module whose `on_start` and `on_stop` it runs, instead of a program.
    pub hooks: Option<String>,
    /// The working directory, relative to the file; by default the file's own.
    pub directory: Option<PathBuf>,
    /// Variables beside those of this process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// When it is ready; by default once it is started.
    pub ready: Option<ReadyKey>,
    /// The time until it must be ready. Default 60 s.
    #[serde(default, deserialize_with = "duration")]
    pub ready_timeout: Option<Duration>,
    /// The signal that asks it to end. Default `SIGTERM`.
    #[serde(default, deserialize_with = "signal")]
    pub stop_signal: Option<StopSignal>,
    /// The time until it must have ended. Default 5 s.
    #[serde(default, deserialize_with = "duration")]
    pub stop_timeout: Option<Duration>,
}

/// The key `ready`: one of its ways.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyKey {
    /// It accepts connections at this `host:port`.
    Tcp(#[serde(deserialize_with = "address")] String),
    /// It answers this URL with success.
    Http(#[serde(deserialize_with = "url")] HttpUrl),
    /// This file exists, relative to the process's directory.
    File(PathBuf),
    /// It has printed a line with this text.
    Line(#[serde(deserialize_with = "text")] String),
}

/// Reads every `[[process]]`.
pub(crate) fn read_all(root: &Section<'_>) -> Result<Vec<HelperPlan>, ConfigError> {
    let mut helpers: Vec<HelperPlan> = Vec::new();
    for section in root.sections("process")? {
        let helper = read(section.clone())?;
        if let Some(first) = helpers.iter().find(|first| first.name.value == helper.name.value) {
            return Err(section.duplicate("process", "name", &first.name));
        }
        helpers.push(helper);
    }
    Ok(helpers)
}

fn read(section: Section<'_>) -> Result<HelperPlan, ConfigError> {
    let name = section.require_text("name", "a name for the process")?;
    let section = section.called(format!("process `{}`", name.value));
    let keys: HelperKeys = own_keys::read(&section, &["name"])?;
    match (section.get("command"), section.get("hooks")) {
        (None, None) => return Err(section.missing("command", "a program and its arguments, or `hooks`")),
        (Some(_), Some(hooks)) => return Err(hooks.bad("no `command`, or no `hooks`")),
        _ => {}
    }
    let own = section.keys().into_iter().filter(|key| *key != "name");
    let own = own.filter_map(|key| section.get(key).map(|entry| (key, entry)));
    let own = own.map(|(key, entry)| OwnKey::new(key, &entry));
    Ok(HelperPlan { name, keys, own: own.collect() })
}

impl HelperPlan {
    /// The helper of a file in `base`. It ends with this process, however that ends.
    #[must_use]
    pub fn config(&self, base: &Path) -> HelperConfig {
        let HelperKeys { command, hooks, directory, env, ready, ready_timeout, stop_signal, stop_timeout } = &self.keys;
        let name = &self.name.value;
        let mut config = match hooks {
            Some(app) => PythonConfig::new(app).hooks(name, base),
            None => HelperConfig::new(name, command.iter().flatten()),
        };
        if hooks.is_none()
            && let Some(program) = config.command.first_mut()
        {
            *program = program_in(base, program);
        }
        let directory = directory.as_ref().map_or_else(|| base.to_owned(), |directory| base.join(directory));
        config.ready = match ready {
            None => config.ready,
            Some(ReadyKey::Tcp(address)) => Readiness::Tcp(address.clone()),
            Some(ReadyKey::Http(url)) => Readiness::Http(url.clone()),
            Some(ReadyKey::File(path)) => Readiness::File(directory.join(path)),
            Some(ReadyKey::Line(text)) => Readiness::Line(text.clone()),
        };
        config.directory = Some(directory).filter(|directory| !directory.as_os_str().is_empty());
        config.env.extend(env.clone());
        config.ready_timeout = ready_timeout.unwrap_or(config.ready_timeout);
        config.stop_signal = stop_signal.unwrap_or(config.stop_signal);
        config.stop_timeout = stop_timeout.unwrap_or(config.stop_timeout);
        config.guarded = true;
        config
    }
}

fn command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let command = Vec::<String>::deserialize(deserializer)?;
    if command.first().is_none_or(String::is_empty) {
        return Err(D::Error::custom("expected a program and its arguments"));
    }
    Ok(Some(command))
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address { Ok(text) } else { Err(D::Error::custom("expected an address such as \"127.0.0.1:6379\"")) }
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HttpUrl, D::Error> {
    let text = String::deserialize(deserializer)?;
    HttpUrl::parse(&text).ok_or_else(|| D::Error::custom("expected a URL such as \"http://127.0.0.1:9000/health\""))
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Err(D::Error::custom("expected a part of a line")) } else { Ok(text) }
}

fn signal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StopSignal>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let signal = StopSignal::ALL.into_iter().find(|signal| signal.as_str() == text);
    let names = || StopSignal::ALL.map(StopSignal::as_str).join(", ");
    signal.map(Some).ok_or_else(|| D::Error::custom(format!("expected one of {}", names())))
}

#[cfg(test)]
mod tests {
    use callboard_process::HOOKS_READY;

    use super::super::{Environment, Explanation, Flags, Plan, Target};
    use super::*;

    const STAGE: &str = "[[stage]]\nname = \"x\"\nkind = \"labels\"\n[[route]]\npath = \"/x\"\nstages = \"x\"\n";

    fn plan(keys: &str) -> Result<Plan, String> {
        let text = format!("[[process]]\nname = \"redis\"\n{keys}\n{STAGE}");
        let target = Target::File { path: PathBuf::from("etc/callboard.toml"), text };
        Plan::resolve(target, &Flags::new(), &Environment::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn all_keys_of_a_process_are_read() {
        let keys = "command = [\"bin/redis\", \"-v\"]\ndirectory = \"run\"\nenv = { A = \"1\" }\n\
                    ready = { file = \"ready\" }\nready_timeout = \"7s\"\nstop_signal = \"SIGINT\"\nstop_timeout = \"9s\"";
        let plan = plan(keys).unwrap();
        let config = plan.helpers[0].config(plan.target.base());
        let mut expected = HelperConfig::new("redis", [std::path::absolute("etc/bin/redis").unwrap(), "-v".into()]);
        expected.directory = Some("etc/run".into());
        expected.env.insert("A".to_owned(), "1".to_owned());
        expected.ready = Readiness::File("etc/run/ready".into());
        expected.ready_timeout = Duration::from_secs(7);
        expected.stop_signal = StopSignal::Int;
        expected.stop_timeout = Duration::from_secs(9);
        expected.guarded = true;
        assert_eq!(config, expected);
        let explained = Explanation(&plan).to_string();
        assert!(explained.contains("\nprocess redis\n"), "{explained}");
        assert!(explained.contains("ready_timeout  \"7s\""), "{explained}");
    }

    #[test]
    fn a_process_may_run_the_hooks_of_a_python_file() {
        let plan = plan("hooks = \"app.py\"\nready_timeout = \"7s\"").unwrap();
        let config = plan.helpers[0].config(plan.target.base());
        assert_eq!(config.command[1..], ["-m", "callboard.hooks", "app.py"]);
        assert_eq!(config.directory, Some("etc".into()));
        assert_eq!(
            (&config.ready, config.ready_timeout),
            (&Readiness::Line(HOOKS_READY.to_owned()), Duration::from_secs(7))
        );
    }

    #[test]
    fn errors_name_the_key_and_what_is_expected() {
        const COMMAND: &str = "command = [\"redis\"]\n";
        for (keys, expected) in [
            ("command = []", "3: process `redis`: command: expected a program and its arguments"),
            ("comand = [\"x\"]", "3: process `redis`: unknown key `comand`; did you mean `command`?"),
            ("ready = { file = \"x\" }", "process `redis`: `command` is missing"),
            ("hooks = \"a.py\"\ncommand = [\"x\"]", "hooks: expected no `command`, or no `hooks`"),
            ("ready = { tcp = \"6379\" }", "4: process `redis`: ready: expected an address such as \"127.0.0.1:6379\""),
            ("ready = { http = \"https://a/\" }", "ready: expected a URL such as \"http://127.0.0.1:9000/health\""),
            ("ready = { line = \"\" }", "ready: expected a part of a line"),
            ("ready = { udp = \"a:1\" }", "ready: unknown variant `udp`"),
            ("ready_timeout = \"7\"", "ready_timeout: expected a duration such as"),
            ("stop_signal = \"TERM\"", "stop_signal: expected one of SIGTERM, SIGINT"),
        ] {
            let needs_command = !keys.contains("mand = ") && !expected.contains("is missing");
            let text = if needs_command { format!("{COMMAND}{keys}") } else { keys.to_owned() };
            let error = plan(&text).unwrap_err();
            assert!(error.contains(expected), "{keys}: {error}");
        }
        let twice = format!("{COMMAND}[[process]]\nname = \"redis\"\n{COMMAND}");
        assert!(plan(&twice).unwrap_err().contains("there is a process `redis` already, on line 2"));
    }
}
