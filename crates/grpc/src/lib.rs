//! gRPC on the port of the HTTP edge: its clients call routes as models of the Open Inference Protocol, and as routes.
//!
//! ```text
//!  inference.GRPCInferenceService        models: Triton's and KServe's clients
//!  grpc.health.v1.Health                 readiness of the server and of models, for Kubernetes and balancers
//!  grpc.reflection.v1, v1alpha            how all of these are declared
//!  callboard.v1.Inference                every route, whole or streamed, with a body in any form that it takes
//!  kaggle_evaluation_client.…             functions, as a gateway of evaluations calls them (`relay`; off by default)
//! ```
//!
//! A request is gRPC by its content type, `application/grpc`, over HTTP/2 with prior knowledge or by ALPN. It passes
//! the guards of every request. What refuses it, answers as gRPC does: HTTP 200 with `grpc-status` (`status`).
//!
//! * **Framing** (`framing`, `reader`): five bytes before each message say its length. It is compared with the limits
//!   of bodies and with the free bytes of the node before anything is read. Messages in gzip and deflate are unpacked
//!   in small steps within the same limits.
//! * **Messages** (`proto`, `wire`): prost writes them and reads short ones. A request with arrays is read field by
//!   field, so that no few bytes become a large structure.
//! * **Deadlines:** `grpc-timeout` or `x-request-timeout-ms`, of which the smaller wins.
//! * **Cancelled:** a client that resets its stream drops the future of the answer, and with it the call.
//!
//! The door translates: models, arrays and calls are those of `callboard-oip`; it has no queue, no retry and no
//! default of its own.

mod answer;
mod descriptor;
mod framing;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod health;
mod inference;
mod proto;
mod reader;
mod reflection;
mod relay;
mod routes;
mod status;
mod stream;
mod watchers;
mod wire;

use std::future::ready;
use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{Deadline, ErrorKind, Instant, LocalClient};
use callboard_http::HttpConfig;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::request::Parts;
use callboard_http::axum::http::{Method, Request, StatusCode, Version};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, CalledRoute, Claims, ClientAddress, ContentCoding, Protocol, ProtocolAnswer, ProtocolDocument,
    ProtocolRequest, RequestContext, RequestHead, SERVER_TIMING, StartingAnswer, server_timing, short_body,
};
use callboard_oip::InferenceProtocol;
use serde_json::{Value, json};

use self::framing::{answer_coding, coding_of, unimplemented};
use self::inference::infer::{Caller, InferAnswer};
use self::inference::models::{self, Models};
use self::inference::response::AnswerForm;
use self::inference::streamed;
use self::proto::inference::{ReadyResponse, RepositoryIndexRequest, ServerLiveResponse};
use self::reader::{Message, MessageReader};
use self::routes::RouteCall;
use self::watchers::Watchers;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use self::fuzz::decode_infer_request;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use self::relay::decode_relay_request;

/// The paths of its services. No route may have one of them.
const SERVICES: [&str; 5] = [
    "/inference.GRPCInferenceService",
    "/grpc.health.v1.Health",
    "/callboard.v1.Inference",
    "/grpc.reflection.v1.ServerReflection",
    "/grpc.reflection.v1alpha.ServerReflection",
];

/// Those of its methods that need no key: health.
const OPEN: [&str; 3] = [
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/grpc.health.v1.Health",
];

const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Methods of the protocol that this server does not have.
const NOT_OFFERED: [&str; 8] = [
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
];

/// The longest message of a method that takes no arrays.
const SHORT_BYTES: u64 = 64 * 1024;

/// The protocol, for an [`HttpEdge`](callboard_http::HttpEdge).
#[derive(Debug)]
pub struct GrpcProtocol {
    inference: Arc<InferenceProtocol>,
    /// Those that watch the health.
    watchers: Arc<Watchers>,
    /// The calls of the relay's functions.
    turns: relay::Turns,
}

impl GrpcProtocol {
    /// The protocol, with the models of the Open Inference Protocol over HTTP.
    #[must_use]
    pub fn new(inference: Arc<InferenceProtocol>) -> Self {
        Self { inference, watchers: Arc::default(), turns: relay::Turns::default() }
    }

    async fn respond(&self, context: RequestContext<'_>, head: &Parts, body: Body) -> Result<Response, ApiError> {
        check_head(head)?;
        let request = RequestHead::read(&head.headers)?;
        let call = self.call(context, head, &request, body)?;
        let path = head.uri.path();
        let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return Err(unknown_method(path));
        };
        match service {
            "inference.GRPCInferenceService" => call.inference(method).await,
            "grpc.health.v1.Health" => call.health(method).await,
            "callboard.v1.Inference" => call.route(method).await,
            // Boxed, because it is large.
            relay::SERVICE if context.config.relay && method == "Send" => Box::pin(call.send()).await,
            "grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection"
                if method == "ServerReflectionInfo" =>
            {
                Ok(reflection::respond(context, call.reader(SHORT_BYTES)))
            }
            _ => Err(unknown_method(path)),
        }
    }

    fn call<'a>(
        &'a self,
        context: RequestContext<'a>,
        head: &'a Parts,
        request: &'a RequestHead<'a>,
        body: Body,
    ) -> Result<GrpcCall<'a>, ApiError> {
        let coding = coding_of(&head.headers)?;
        let answer_coding = answer_coding(coding, &head.headers);
        Ok(GrpcCall { protocol: self, context, head, request, coding, answer_coding, body })
    }
}

/// One request to a method.
struct GrpcCall<'a> {
    protocol: &'a GrpcProtocol,
    context: RequestContext<'a>,
    head: &'a Parts,
    request: &'a RequestHead<'a>,
    coding: Option<ContentCoding>,
    /// That of its answer, if it is long.
    answer_coding: Option<ContentCoding>,
    body: Body,
}

impl GrpcCall<'_> {
    async fn route(self, method: &str) -> Result<Response, ApiError> {
        let Self { context, head, request, answer_coding: coding, .. } = self;
        let is_streamed = match method {
            "Call" => false,
            "Stream" => true,
            _ => return Err(unknown_method(head.uri.path())),
        };
        let message = self.reader(context.config.largest_body_bytes()).only().await?;
        let call = RouteCall::read(context, head, request, coding, message)?;
        let route = Arc::clone(&call.route);
        // Boxed, because they are large.
        let answer = if is_streamed { Box::pin(call.stream()).await } else { Box::pin(call.call()).await };
        let mut answer = answer.map_err(|error| error.about(route.name()))?;
        answer.extensions_mut().insert(CalledRoute(route));
        Ok(answer)
    }

    async fn health(self, method: &str) -> Result<Response, ApiError> {
        let (context, inference) = (self.context, &self.protocol.inference);
        match method {
            "Check" => Ok(answer::message(&health::check(context, inference, &self.short().await?)?)),
            "Watch" => {
                let client = self.head.extensions.get::<ClientAddress>().map(|client| client.0);
                let watcher = self.protocol.watchers.admit(client, Instant::now())?;
                health::watch(context, inference, watcher, self.short().await?)
            }
            _ => Err(unknown_method(self.head.uri.path())),
        }
    }

    async fn inference(self, method: &str) -> Result<Response, ApiError> {
        let RequestContext { client, .. } = self.context;
        let models = Models { inference: &self.protocol.inference, client };
        match method {
            "ServerLive" => Ok(answer::message(&ServerLiveResponse { live: client.health().live })),
            "ServerReady" => Ok(answer::message(&ReadyResponse { ready: client.health().ready })),
            "ServerMetadata" => Ok(answer::message(&models::server_metadata()?)),
            "ModelReady" => Ok(answer::message(&models.ready(&self.short().await?)?)),
            "ModelMetadata" => Ok(answer::message(&models.metadata(&self.short().await?)?)),
            "ModelConfig" => Ok(answer::message(&models.config(&self.short().await?)?)),
            "ModelStatistics" => Ok(answer::message(&models.statistics(&self.short().await?)?)),
            "RepositoryIndex" => {
                let RepositoryIndexRequest { ready, .. } = self.short().await?;
                Ok(answer::message(&models.index(ready)?))
            }
            "RepositoryModelLoad" | "RepositoryModelUnload" => {
                let may_change = self.context.config.model_control;
                let load = method == "RepositoryModelLoad";
                Ok(answer::message(&models.change(self.short().await?, load, may_change).await?))
            }
            method if NOT_OFFERED.contains(&method) => {
                let message = format!("this server does not offer {method}: no shared memory, trace or log settings");
                Err(unimplemented(message))
            }
            // `ModelInfer` does not come here: see `exchange`.
            "ModelStreamInfer" => {
                let (context, head, coding) = (self.context, self.head.clone(), self.answer_coding);
                let inference = Arc::clone(&self.protocol.inference);
                let reader = self.reader(context.config.largest_body_bytes());
                Ok(streamed::respond(context, head, coding, inference, reader))
            }
            _ => Err(unknown_method(self.head.uri.path())),
        }
    }

    /// The only message of a request, which is short.
    async fn short<M: prost::Message + Default>(self) -> Result<M, ApiError> {
        let message = self.reader(SHORT_BYTES).only().await?;
        M::decode(message.bytes).map_err(|error| framing::unreadable(&error))
    }

    fn reader(self, max_bytes: u64) -> MessageReader {
        let Self { context: RequestContext { client, config, start, .. }, request, coding, body, .. } = self;
        let limits = client.edge().limits();
        let longest = request.timeout.unwrap_or(limits.default_timeout).min(limits.max_timeout);
        let pace = config.body_pace(Deadline::after(start, longest));
        MessageReader::new(body, client.clone(), coding, max_bytes, pace, config.idle_timeout)
    }

    async fn infer(self) -> Result<Response, ApiError> {
        let Self { protocol, context, head, request, answer_coding: coding, .. } = self;
        let RequestContext { client, config, start, .. } = context;
        let caller = Caller {
            client,
            config,
            inference: &protocol.inference,
            origin: context.origin(),
            request: (&head.uri, &head.headers, &head.extensions),
            head: request,
            coding,
        };
        let Message { bytes, account } = self.reader(config.largest_body_bytes()).only().await?;
        let of = caller.model_of(bytes)?;
        let answered = caller.infer(&of, &account, start, AnswerForm::Only).await;
        let InferAnswer { pieces, timing } = answered.map_err(|error| error.about(of.route.name()))?;
        let mut response = answer::unary(pieces, coding);
        response.headers_mut().insert(SERVER_TIMING, server_timing(&timing));
        response.extensions_mut().insert(CalledRoute(of.route));
        Ok(response)
    }
}

/// Refuses what is no call of gRPC.
fn check_head(head: &Parts) -> Result<(), ApiError> {
    if head.method != Method::POST {
        return Err(ApiError::method_not_allowed(&head.method, "POST"));
    }
    if head.version < Version::HTTP_2 {
        return Err(unimplemented("gRPC needs HTTP/2: connect with prior knowledge, or by ALPN".to_owned()));
    }
    Ok(())
}

fn unknown_method(path: &str) -> ApiError {
    let shown: String = path.chars().take(100).collect();
    unimplemented(format!("there is no method `{shown}`"))
}

/// Whether this request has the content type of gRPC: paths of its services may be asked for with another one.
fn is_grpc(head: &Parts) -> bool {
    let content_type = head.headers.get("content-type").map(|value| value.as_bytes()).unwrap_or_default();
    content_type
        .split_at_checked("application/grpc".len())
        .is_some_and(|(start, rest)| start.eq_ignore_ascii_case(b"application/grpc") && !rest.starts_with(b"-"))
}

impl Protocol for GrpcProtocol {
    fn name(&self) -> &str {
        "gRPC"
    }

    fn door(&self) -> &'static str {
        "grpc"
    }

    fn claims(&self) -> Claims {
        Claims { paths: &SERVICES, content_types: &["application/grpc"], open_paths: &OPEN, ..Claims::default() }
    }

    fn document(&self, _: &[Arc<Route>], _: &mut dyn FnMut(&str, Value) -> Value) -> Option<ProtocolDocument> {
        let description = "The same routes on this port over gRPC: `callboard.v1.Inference`, and \
                           `inference.GRPCInferenceService` of the Open Inference Protocol. Reflection has their \
                           messages.";
        let tag = json!({ "name": "grpc", "description": description });
        Some(ProtocolDocument { tag, ..ProtocolDocument::default() })
    }

    fn answer<'a>(&'a self, _: RequestContext<'a>, _: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(async { Err(ApiError::new(ErrorKind::Internal, "gRPC takes the bodies of its requests")) })
    }

    fn takes_bodies(&self) -> bool {
        true
    }

    fn exchange<'a>(&'a self, context: RequestContext<'a>, request: Request<Body>) -> ProtocolAnswer<'a> {
        let (head, body) = request.into_parts();
        if !is_grpc(&head) {
            return Box::pin(ready(Ok(not_grpc())));
        }
        if head.uri.path() == MODEL_INFER {
            // The method that is called most has a box of its own, and no future of other methods around it.
            return Box::pin(async move {
                check_head(&head)?;
                let request = RequestHead::read(&head.headers)?;
                self.call(context, &head, &request, body)?.infer().await
            });
        }
        Box::pin(async move { self.respond(context, &head, body).await })
    }

    fn error_response(&self, error: ApiError) -> Response {
        status::response(&error)
    }

    /// Operators load and unload models there.
    fn answer_admin<'a>(
        &'a self,
        client: &'a LocalClient,
        config: &'a HttpConfig,
        request: ProtocolRequest<'a>,
    ) -> ProtocolAnswer<'a> {
        Box::pin(async move {
            check_head(request.head)?;
            let models = Models { inference: &self.inference, client };
            let method = request.head.uri.path().strip_prefix("/inference.GRPCInferenceService/").unwrap_or_default();
            let body = short_body(request.body, config.body_progress_timeout);
            match method {
                "RepositoryIndex" => {
                    let RepositoryIndexRequest { ready, .. } = framing::only(&body.await?)?;
                    Ok(answer::message(&models.index(ready)?))
                }
                "RepositoryModelLoad" | "RepositoryModelUnload" => {
                    let load = method == "RepositoryModelLoad";
                    Ok(answer::message(&models.change(framing::only(&body.await?)?, load, true).await?))
                }
                _ => Err(unknown_method(request.head.uri.path())),
            }
        })
    }

    fn starting_response<'a>(&'a self, config: &'a HttpConfig, request: ProtocolRequest<'a>) -> StartingAnswer<'a> {
        Box::pin(async move {
            let ProtocolRequest { head, body } = request;
            if !is_grpc(head) {
                return Some(not_grpc());
            }
            check_head(head).ok()?;
            match head.uri.path() {
                "/inference.GRPCInferenceService/ServerLive" => {
                    Some(answer::message(&ServerLiveResponse { live: true }))
                }
                "/inference.GRPCInferenceService/ServerReady" => Some(answer::message(&ReadyResponse { ready: false })),
                path => {
                    let method = path.strip_prefix("/grpc.health.v1.Health/")?;
                    let body = short_body(body, config.body_progress_timeout).await.ok()?;
                    health::while_starting(method, framing::only(&body).ok()?)
                }
            }
        })
    }
}

/// 415: a request to a service that is not gRPC, such as gRPC-Web.
fn not_grpc() -> Response {
    let mut response = Response::new(Body::from("this path takes gRPC: `content-type: application/grpc`\n"));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}
