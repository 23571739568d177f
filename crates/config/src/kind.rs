//! The kinds of stages that a file can name, and the crate that declares the keys of each.

use std::path::Path;
use std::time::Duration;

use callboard_core::Contract;
#[cfg(feature = "onnx")]
use callboard_onnx::OnnxConfig;
use callboard_stages::image::ImageConfig;
use callboard_stages::labels::LabelsConfig;
use toml::de::DeTable;

use super::document::Section;
use super::error::ConfigError;
use super::nearest::Hint;
use super::own_keys;
#[cfg(feature = "process")]
use super::placement::PlacementKeys;
#[cfg(feature = "process")]
use super::process::{ProcessKeys, PythonKeys};
use super::remote::{self, RemoteConfig};
#[cfg(feature = "onnx")]
use super::units::parse_duration;

/// A kind with its own keys.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StageKind {
    /// Decodes an image into a tensor.
    Image(ImageConfig),
    /// Runs an ONNX model.
    #[cfg(feature = "onnx")]
    Onnx(OnnxConfig),
    /// Turns scores into labels.
    Labels(LabelsConfig),
    /// Runs a command that speaks the worker protocol.
    #[cfg(feature = "process")]
    Process(ProcessKeys),
    /// Runs a service in Python.
    #[cfg(feature = "process")]
    Python(PythonKeys),
    /// A stage that only other nodes run.
    Remote(RemoteConfig),
}

/// A small model is loaded within this time on a busy machine.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// The least rate of a cold disk.
const BYTES_PER_SECOND: u64 = 16 << 20;

const KINDS: [&str; 6] = ["image", "onnx", "labels", "process", "python", "remote"];

impl StageKind {
    /// Reads the kind and its keys. `common` are the keys that belong to no kind.
    pub(crate) fn read(
        section: &Section<'_>,
        common: &[&'static str],
        without_effect_on_remote: fn(&str) -> Option<&'static str>,
    ) -> Result<Self, ConfigError> {
        let kind = section.require_text("kind", &format!("one of {}", KINDS.join(", ")))?.value;
        match kind.as_str() {
            "image" => own_keys::read(section, common).map(Self::Image),
            #[cfg(feature = "onnx")]
            "onnx" => own_keys::read(section, common).map(Self::Onnx),
            #[cfg(not(feature = "onnx"))]
            "onnx" => Err(ConfigError::Unavailable { place: section.place(), kind: "onnx", feature: "onnx" }),
            "labels" => own_keys::read(section, common).map(Self::Labels),
            #[cfg(feature = "process")]
            "process" => own_keys::read(section, common).map(Self::Process),
            #[cfg(feature = "process")]
            "python" => own_keys::read(section, common).map(Self::Python),
            #[cfg(not(feature = "process"))]
            "process" | "python" => {
                Err(ConfigError::Unavailable { place: section.place(), kind: "process", feature: "process" })
            }
            "remote" => remote::read(section, common, without_effect_on_remote).map(Self::Remote),
            _ => Err(ConfigError::UnknownName {
                place: section.get("kind").map_or_else(|| section.place(), |entry| entry.place()),
                what: "stage kind",
                hint: Hint::new(&kind, KINDS),
                name: kind,
            }),
        }
    }

    /// This model with default settings.
    #[cfg(feature = "onnx")]
    pub(crate) fn model(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self::Onnx(OnnxConfig::new(path)))
    }

    /// This program cannot run models.
    #[cfg(not(feature = "onnx"))]
    pub(crate) fn model(path: &Path) -> Result<Self, ConfigError> {
        let problem = "this program was built without the feature `onnx`, which models need".to_owned();
        Err(ConfigError::Target { path: path.to_owned(), problem })
    }

    /// Reads the keys of kind `onnx` but `model`, which [`set_model`](Self::set_model) sets. A key that is not there is
    /// taken from `defaults`.
    #[cfg(feature = "onnx")]
    pub(crate) fn read_model(
        section: &Section<'_>,
        defaults: Option<DeTable<'_>>,
        common: &[&str],
    ) -> Result<Self, ConfigError> {
        own_keys::read_with(section, common, Some(("model", "")), defaults).map(Self::Onnx)
    }

    /// This program cannot run models.
    #[cfg(not(feature = "onnx"))]
    pub(crate) fn read_model(
        section: &Section<'_>,
        _defaults: Option<DeTable<'_>>,
        _common: &[&str],
    ) -> Result<Self, ConfigError> {
        Err(ConfigError::Unavailable { place: section.place(), kind: "onnx", feature: "onnx" })
    }

    /// Sets the file of a model. Another kind has none.
    #[cfg_attr(not(feature = "onnx"), expect(unused_variables, reason = "no other kind has a file"))]
    pub(crate) fn set_model(&mut self, path: &Path) {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(config) => config.model = path.to_owned(),
            _ => {}
        }
    }

    /// Whether each replica is a process of its own that opens the model.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(config) => config.isolate,
            _ => false,
        }
    }

    /// How long the start of a model may take, given the bytes of its files.
    pub fn start_timeout(&self, bytes: u64) -> Duration {
        let by_default = DEFAULT_START_TIMEOUT + Duration::from_secs(bytes / BYTES_PER_SECOND);
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(config) => config.start_timeout.as_deref().and_then(parse_duration).unwrap_or(by_default),
            _ => by_default,
        }
    }

    /// The same model in processes of its own.
    #[cfg(feature = "process")]
    pub fn isolate(&mut self) {
        #[cfg(feature = "onnx")]
        if let Self::Onnx(config) = self {
            config.isolate = true;
        }
    }

    /// Whether it is a service in Python.
    #[cfg(feature = "process")]
    #[must_use]
    pub fn is_python(&self) -> bool {
        matches!(self, Self::Python(_))
    }

    /// The stage whose replicas run it, if they are not its own.
    #[must_use]
    pub fn replicas_of(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "process")]
            Self::Python(keys) => keys.replicas_of.as_deref(),
            _ => None,
        }
    }

    /// Whether only other nodes run the stage.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// The default contract: the results of all built-in kinds depend on their items only, so entries may run again. A
    /// remote stage has the contract of the node that runs it. The effects of users' processes are unknown.
    pub(crate) fn contract(&self) -> Contract {
        match self {
            Self::Image(_) | Self::Labels(_) | Self::Remote(_) => Contract::Pure,
            #[cfg(feature = "onnx")]
            Self::Onnx(_) => Contract::Pure,
            #[cfg(feature = "process")]
            Self::Process(_) | Self::Python(_) => Contract::AtMostOnce,
        }
    }

    /// The default largest batch of this kind; a model may turn out to have a smaller one.
    pub(crate) fn max_batch_size(&self) -> usize {
        match self {
            Self::Image(_) | Self::Labels(_) | Self::Remote(_) => 1,
            #[cfg(feature = "process")]
            Self::Process(_) | Self::Python(_) => 1,
            #[cfg(feature = "onnx")]
            Self::Onnx(_) => callboard_onnx::Signature::DEFAULT_MAX_BATCH_SIZE,
        }
    }

    /// Whether each worker is a thread, which can be pinned to a core and abandoned when it hangs.
    pub(crate) fn has_threads(&self) -> bool {
        match self {
            Self::Image(_) => true,
            #[cfg(feature = "onnx")]
            Self::Onnx(_) => true,
            #[cfg(feature = "process")]
            Self::Process(_) | Self::Python(_) => true,
            Self::Labels(_) | Self::Remote(_) => false,
        }
    }

    /// Whether each replica is a child process.
    #[cfg(feature = "process")]
    pub(crate) fn has_children(&self) -> bool {
        match self {
            Self::Process(_) | Self::Python(_) => true,
            _ => self.is_isolated(),
        }
    }

    /// Where its replicas run, if they are processes of a program.
    #[cfg(feature = "process")]
    pub(crate) fn placement(&self) -> Option<PlacementKeys<'_>> {
        match self {
            Self::Process(keys) => Some(keys.placement()),
            Self::Python(keys) => Some(keys.placement()),
            _ => None,
        }
    }

    /// Whether it keeps a child beside those of its replicas.
    pub(crate) fn has_spare(&self) -> bool {
        #[cfg(feature = "process")]
        return self.placement().is_some_and(|keys| keys.spare);
        #[cfg(not(feature = "process"))]
        false
    }

    /// Whether the cost of an item may be the length of its first axis.
    pub(crate) fn has_rows(&self) -> bool {
        match self {
            Self::Image(_) | Self::Labels(_) | Self::Remote(_) => false,
            #[cfg(feature = "process")]
            Self::Process(_) | Self::Python(_) => false,
            #[cfg(feature = "onnx")]
            Self::Onnx(_) => true,
        }
    }

    /// Whether items are padded to one length.
    pub(crate) fn is_padded(&self) -> bool {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(config) => config.pad.is_some(),
            _ => false,
        }
    }

    /// The name in a file.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Image(_) => "image",
            #[cfg(feature = "onnx")]
            Self::Onnx(_) => "onnx",
            Self::Labels(_) => "labels",
            #[cfg(feature = "process")]
            Self::Process(_) => "process",
            #[cfg(feature = "process")]
            Self::Python(_) => "python",
            Self::Remote(_) => "remote",
        }
    }
}
