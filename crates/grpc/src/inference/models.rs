//! What clients read about the server and its models.

use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{ErrorKind, LocalClient};
use callboard_http::protocol::ApiError;
use callboard_oip::InferenceProtocol;
use callboard_oip::parts::{self, Model, Refusal, shown};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::proto::config::{ModelConfig, ModelConfigResponse};
use crate::proto::inference::{
    ModelIndex, ModelMetadataResponse, ModelRequest, ReadyResponse, RepositoryChangeRequest, RepositoryChangeResponse,
    RepositoryIndexResponse, RepositoryParameterChoice, ServerMetadataResponse,
};
use crate::proto::statistics::ModelStatisticsResponse;

/// The extensions that HTTP alone has.
const OF_HTTP: [&str; 2] = ["binary_tensor_data", "generate"];

/// The version that a request asks for; the empty one is the server's choice.
pub(crate) fn version(text: &str) -> Result<Option<u64>, Refusal> {
    match text {
        "" => Ok(None),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u64>().is_ok() => {
            Ok(digits.parse().ok())
        }
        other => Err(Refusal::new(format!("a version is a whole number, not '{}'", shown(other)))),
    }
}

pub(crate) fn server_metadata() -> Result<ServerMetadataResponse, ApiError> {
    let mut server: ServerMetadataResponse = typed(parts::server())?;
    server.extensions.retain(|name| !OF_HTTP.contains(&name.as_str()));
    Ok(server)
}

/// The models that clients ask about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Models<'a> {
    pub(crate) inference: &'a InferenceProtocol,
    pub(crate) client: &'a LocalClient,
}

impl Models<'_> {
    pub(crate) fn ready(self, request: &ModelRequest) -> Result<ReadyResponse, ApiError> {
        let (route, _) = self.inference.model(self.client, &request.name, version(&request.version)?)?;
        Ok(ReadyResponse { ready: parts::unready(&self.client.health(), &route).is_none() })
    }

    pub(crate) fn metadata(self, request: &ModelRequest) -> Result<ModelMetadataResponse, ApiError> {
        let (_, model) = self.inference.model(self.client, &request.name, version(&request.version)?)?;
        typed(parts::metadata(self.client, &model))
    }

    pub(crate) fn config(self, request: &ModelRequest) -> Result<ModelConfigResponse, ApiError> {
        let (route, model) = self.inference.model(self.client, &request.name, version(&request.version)?)?;
        let config: ModelConfig = typed(parts::config(self.client, &route, &model))?;
        Ok(ModelConfigResponse { config: Some(config) })
    }

    /// The statistics of one model, or of all without a name.
    pub(crate) fn statistics(self, request: &ModelRequest) -> Result<ModelStatisticsResponse, ApiError> {
        let models = if request.name.is_empty() {
            self.inference.models(self.client)
        } else {
            vec![self.inference.model(self.client, &request.name, version(&request.version)?)?]
        };
        let of = |(route, model): &(Arc<Route>, Arc<Model>)| typed(parts::statistics(route, model));
        Ok(ModelStatisticsResponse { model_stats: models.iter().map(of).collect::<Result<_, _>>()? })
    }

    /// Loads or unloads a model. Its name is the second field, or the first one of KServe's own clients.
    pub(crate) async fn change(
        self,
        request: RepositoryChangeRequest,
        load: bool,
        may_change: bool,
    ) -> Result<RepositoryChangeResponse, ApiError> {
        let RepositoryChangeRequest { repository_name, model_name, parameters } = request;
        let model_name = if model_name.is_empty() { repository_name } else { model_name };
        let parameters = parameters.iter().map(|(key, value)| {
            let is_bool = matches!(value.parameter_choice, Some(RepositoryParameterChoice::BoolParam(_)));
            (key.as_str(), is_bool)
        });
        self.inference.change(&model_name, load, parameters, may_change).await?;
        Ok(RepositoryChangeResponse { model_name, is_done: true })
    }

    pub(crate) fn index(self, only_ready: bool) -> Result<RepositoryIndexResponse, ApiError> {
        let models: Vec<ModelIndex> = typed(self.inference.index(self.client, only_ready))?;
        Ok(RepositoryIndexResponse { models })
    }
}

/// The message of a document of the protocol over HTTP.
fn typed<T: DeserializeOwned>(document: Value) -> Result<T, ApiError> {
    serde_json::from_value(document)
        .map_err(|error| ApiError::new(ErrorKind::Internal, format!("a description has no message: {error}")))
}
