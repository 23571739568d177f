//! A route with the Rust types of its input and output. Wrong types are an error of the lookup, not of the first call.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use callboard_codec::{Data, DataType, Payload};
use futures_util::FutureExt;
use tokio::time::Sleep;
use tower_service::Service;

use super::{AdmittedCall, CAPACITY_POLL_INTERVAL, LocalClient, run_admitted};
use crate::call::CallOptions;
use crate::clock;
use crate::error::{CallError, ErrorKind};
use crate::router::Admission;

/// A route that takes an `In` and gives an `Out`. Cloning is cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, Stage, TypedRoute};
///
/// let node = App::new().route("/half", Stage::each("half", |n: &i64| Ok(*n as f64 / 2.0))).start().await?;
/// let half: TypedRoute<i64, f64> = node.client().typed("/half")?;
/// assert_eq!(half.call(3).await?, 1.5);
///
/// let wrong = node.client().typed::<i64, String>("/half").unwrap_err();
/// assert_eq!(wrong.message(), "route `/half` gives `f64`, not `alloc::string::String`");
/// # Ok(())
/// # }
/// ```
pub struct TypedRoute<In, Out> {
    client: LocalClient,
    name: String,
    types: PhantomData<fn(In) -> Out>,
}

impl LocalClient {
    /// The route of this name with the types of its input and output.
    ///
    /// # Errors
    ///
    /// `NotFound` without such a route; `InvalidInput` if its Rust types differ: the message names them. For another
    /// type of the same form use [`call`](Self::call).
    pub fn typed<In: Data, Out: Data + Clone>(&self, route: &str) -> Result<TypedRoute<In, Out>, CallError> {
        let held = self.served(route)?;
        let differs = |verb: &str, actual: &DataType, requested: &str| {
            let message = format!("route `{route}` {verb} `{}`, not `{requested}`", actual.rust_name());
            Err(CallError::new(ErrorKind::InvalidInput, message))
        };
        match (held.input(), held.output()) {
            (input, _) if !input.is::<In>() => differs("takes", input, std::any::type_name::<In>()),
            (_, output) if !output.is::<Out>() => differs("gives", output, std::any::type_name::<Out>()),
            _ => Ok(TypedRoute { client: self.clone(), name: route.to_owned(), types: PhantomData }),
        }
    }

    /// The same as a [`tower::Service`](Service) of its inputs.
    ///
    /// # Errors
    ///
    /// As [`typed`](Self::typed).
    pub fn service<In: Data, Out: Data + Clone>(&self, route: &str) -> Result<RouteService<In, Out>, CallError> {
        Ok(self.typed(route)?.into_service())
    }
}

impl<In: Data, Out: Data + Clone> TypedRoute<In, Out> {
    /// The path of the route.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls the route and waits for its outcome.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    ///
    /// # Cancellation
    ///
    /// As [`LocalClient::call`].
    pub fn call(&self, input: In) -> impl Future<Output = Result<Out, CallError>> + Send {
        self.call_with(input, CallOptions::new())
    }

    /// Calls the route with options.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    pub fn call_with(&self, input: In, options: CallOptions) -> impl Future<Output = Result<Out, CallError>> + Send {
        self.client.call_with(&self.name, input, options)
    }

    /// The route as a [`tower::Service`](Service).
    #[must_use]
    pub fn into_service(self) -> RouteService<In, Out> {
        RouteService { route: self, permit: None, waiting: None }
    }
}

impl<In, Out> Clone for TypedRoute<In, Out> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), name: self.name.clone(), types: PhantomData }
    }
}

impl<In, Out> fmt::Debug for TypedRoute<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedRoute").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A route as a [`tower::Service`](Service): ready when it holds a permit of the node for its next call. On a full node
/// it waits for a permit. A clone must become ready by itself.
///
/// A ready service that is not called keeps its permit, and a drain waits for it: drop it, or call it soon.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use callboard_core::{App, Stage};
/// use tower::{ServiceBuilder, ServiceExt as _};
///
/// let node = App::new().route("/double", Stage::each("double", |n: &i64| Ok(n * 2))).start().await?;
/// let double = node.client().service::<i64, i64>("/double")?;
/// let patient = ServiceBuilder::new().timeout(Duration::from_secs(5)).service(double);
/// assert_eq!(patient.oneshot(4).await.map_err(|error| error.to_string())?, 8);
/// # Ok(())
/// # }
/// ```
pub struct RouteService<In, Out> {
    route: TypedRoute<In, Out>,
    permit: Option<Admission>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<In: Data, Out: Data + Clone> Service<In> for RouteService<In, Out> {
    type Response = Out;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Out, CallError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let client = &self.route.client;
        let gateway = &client.shared.gateway;
        while self.permit.is_none() {
            if let Some(waiting) = &mut self.waiting {
                ready!(waiting.as_mut().poll(cx));
            }
            self.waiting = None;
            let route = client.hold(&self.route.name, None)?;
            match gateway.try_admit_at(clock::now(), route, 0, client.outer.as_ref()) {
                Ok(permit) => self.permit = Some(permit),
                Err(refusal) if refusal.may_pass() => {
                    self.waiting = Some(Box::pin(tokio::time::sleep(CAPACITY_POLL_INTERVAL)));
                }
                Err(refusal) => return Poll::Ready(Err(gateway.refuse(refusal))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Without a permit, the call is refused if the node is full.
    fn call(&mut self, input: In) -> Self::Future {
        let Some(mut permit) = self.permit.take() else {
            let route = self.route.clone();
            return Box::pin(async move { route.call(input).await });
        };
        let payload = Payload::new(input);
        if let Err(error) = permit.grow(payload.size_hint() as u64) {
            return Box::pin(std::future::ready(Err(error)));
        }
        // Its time begins now, not when the permit was taken.
        let now = clock::now();
        permit.restart(now);
        let flight = LocalClient::flight_of(&permit, &CallOptions::new());
        let calling = run_admitted(now, AdmittedCall::new(permit, flight), payload, AdmittedCall::read_output);
        Box::pin(calling.map(Result::flatten))
    }
}

impl<In, Out> Clone for RouteService<In, Out> {
    fn clone(&self) -> Self {
        Self { route: self.route.clone(), permit: None, waiting: None }
    }
}

impl<In, Out> fmt::Debug for RouteService<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteService")
            .field("name", &self.route.name)
            .field("is_ready", &self.permit.is_some())
            .finish_non_exhaustive()
    }
}
