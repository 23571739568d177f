//! The declaration of one route: a name, a pipeline, and the defaults of its calls.

use std::any::TypeId;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, DataType, EncodeError, Value};
use schemars::JsonSchema;

use super::change::ChangeError;
use super::path_template::{has_parameters, is_parameter, parameters, route_name, split_route_name};
use super::request_argument::{RequestArgument, RequestPlace};
use super::route::{RequestFields, RouteParts};
use super::task::Task;
use crate::call::{DeclaredResponse, FunctionCall, Priority, RequestExtension};
use crate::id::{RouteName, StageName};
use crate::pipeline::{Graph, IntoPipeline, IntoStreamPipeline, PipelinePlan, StageOutline};
use crate::stage::StageSpec;

/// The type of a route's input or output: [`Data`] with a schema for clients.
///
/// Implemented for all such types; there is nothing to implement by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the input or output of a route",
    label = "needs `JsonSchema`, `Serialize` and `DeserializeOwned`",
    note = "derive all: `#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]`, with schemars 1",
    note = "types of other crates go in a newtype, or in a `Value`, whose schema is given to `route_described`"
)]
pub trait RouteData: Data + JsonSchema {}

impl<T: Data + JsonSchema> RouteData for T {}

/// One route of an app.
///
/// ```
/// use std::time::Duration;
/// use callboard_core::{Priority, RouteSpec, Stage};
///
/// let index = Stage::each("index", |text: &String| Ok(text.len()));
/// let route = RouteSpec::new("/index", index)
///     .summary("Adds a text to the index")
///     .max_in_flight(100)
///     .default_timeout(Duration::from_secs(5))
///     .default_priority(Priority::Low);
/// assert_eq!(route.name(), "/index");
/// ```
#[must_use = "a route is served once it is added to an app"]
pub struct RouteSpec {
    pub(crate) name: RouteName,
    pub(crate) graph: Graph<Arc<StageSpec>>,
    pub(crate) parts: RouteParts,
}

impl RouteSpec {
    /// A typed pipeline under `name`.
    pub fn new<In, Out>(name: &str, pipeline: impl IntoPipeline<In, Out = Out>) -> Self
    where
        In: RouteData,
        Out: RouteData,
    {
        let mut route = Self::with_graph(
            name,
            pipeline.into_pipeline().graph(),
            DataType::for_type::<In>(),
            DataType::for_type::<Out>(),
        );
        route.parts.is_function = TypeId::of::<In>() == TypeId::of::<FunctionCall>();
        route
    }

    /// A pipeline that answers one input with a stream of outputs, under `name`.
    pub fn streaming<In, Out>(name: &str, pipeline: impl IntoStreamPipeline<In, Out = Out>) -> Self
    where
        In: RouteData,
        Out: RouteData,
    {
        let pipeline = pipeline.into_stream_pipeline();
        let mut route =
            Self::with_graph(name, pipeline.graph(), DataType::for_type::<In>(), DataType::for_type::<Out>());
        route.parts.streams_at = Some(pipeline.streams_at());
        route
    }

    /// A pipeline over [`Value`]s, described by hand.
    pub fn described(
        name: &str,
        pipeline: impl IntoPipeline<Value, Out = Value>,
        input: DataType,
        output: DataType,
    ) -> Self {
        Self::with_graph(name, pipeline.into_pipeline().graph(), input, output)
    }

    /// A pipeline over [`Value`]s that answers one input with a stream of outputs, described by hand.
    pub fn described_streaming(
        name: &str,
        pipeline: impl IntoStreamPipeline<Value, Out = Value>,
        input: DataType,
        output: DataType,
    ) -> Self {
        let pipeline = pipeline.into_stream_pipeline();
        let mut route = Self::with_graph(name, pipeline.graph(), input, output);
        route.parts.streams_at = Some(pipeline.streams_at());
        route
    }

    fn with_graph(name: &str, graph: &Graph<Arc<StageSpec>>, input: DataType, output: DataType) -> Self {
        let input = if graph.reads_encoded() { input.kept_encoded() } else { input };
        let mut route =
            Self { name: RouteName::new(name), graph: graph.clone(), parts: RouteParts::new(input, output) };
        route.change_request_fields(|fields| fields.path = has_parameters(name));
        match split_route_name(name) {
            (Some(method), _) => route.methods([method]),
            (None, _) => route,
        }
    }

    /// The names of the request headers that stages of this route may read with
    /// [`CallContext::header`](crate::CallContext::header). Default: none. The code of a stage sees no other header, so
    /// it cannot depend on or reveal an undeclared one, such as `authorization` or `cookie`. Requests over
    /// HTTP have headers; callers over QUIC and in this process may give some.
    ///
    /// ```
    /// use callboard_core::{CallContext, RouteSpec, Stage};
    ///
    /// let greet = Stage::each_with_context("greet", |name: &String, context: &CallContext| {
    ///     Ok(format!("{} {name}", context.header("x-greeting").unwrap_or("hello")))
    /// });
    /// let route = RouteSpec::new("/greet", greet).headers(["X-Greeting"]);
    /// ```
    pub fn headers<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_ascii_lowercase().into()).collect();
        self.change_request_fields(|fields| fields.headers = names);
        self
    }

    /// The names of the query parameters that stages of this route may read with
    /// [`CallContext::query`](crate::CallContext::query), as [`headers`](Self::headers). A request that has one of them
    /// twice is refused.
    pub fn query<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().into()).collect();
        self.change_request_fields(|fields| fields.query = names);
        self
    }

    /// The methods of HTTP that call it, such as `GET`. Default: none, which means `POST`. Callers in this process and
    /// over QUIC have none. A request without a body has the input null.
    ///
    /// Routes may share a path by different methods. The name of each is its path, and its first method before it
    /// unless `POST` calls it, as `GET /items` beside `/items`: with such a name for [`new`](Self::new) it needs no
    /// `methods`. Callers without a method name either; for them `/items` alone means the route that `POST` calls,
    /// else that of `GET`, else the only one.
    ///
    /// ```
    /// use callboard_core::{RouteSpec, Stage};
    ///
    /// let all = Stage::each("all", |_: &()| Ok(vec![7, 8]));
    /// let route = RouteSpec::new("/items", all).methods(["GET"]);
    /// assert_eq!(route.name(), "GET /items");
    /// ```
    ///
    /// A path may have parameters, such as `/items/{item_id}`: it takes each path with one segment in the place of each
    /// of them, and its code finds these in [`CallContext::path`](crate::CallContext::path).
    pub fn methods<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<Box<str>> = names.into_iter().map(|name| name.as_ref().to_ascii_uppercase().into()).collect();
        self.name = RouteName::new(&route_name(split_route_name(self.name.as_str()).1, &names));
        self.change_request_fields(|fields| fields.methods = names);
        self
    }

    /// Lists a header, query parameter or cookie as [`headers`](Self::headers) and [`query`](Self::query) do, and tells
    /// clients its type. Call it after those two. The second one of a name is ignored.
    pub fn request_argument(mut self, argument: RequestArgument) -> Self {
        self.change_request_fields(|fields| {
            let (names, name) = match argument.place {
                RequestPlace::Header => (&mut fields.headers, argument.name.as_str()),
                RequestPlace::Query => (&mut fields.query, argument.name.as_str()),
                RequestPlace::Cookie => (&mut fields.headers, "cookie"),
                // The name of the route has it.
                RequestPlace::Path => return,
            };
            if !names.iter().any(|known| **known == *name) {
                names.push(name.into());
            }
        });
        let known = &mut self.parts.request_arguments;
        if !known.iter().any(|other| (other.place, &other.name) == (argument.place, &argument.name)) {
            known.push(argument);
        }
        self
    }

    /// What its successful answers over HTTP have, unless the code of its stages
    /// [chooses](crate::CallContext::set_response) something else.
    pub fn response(mut self, response: DeclaredResponse) -> Self {
        self.parts.response = Some(Box::new(response));
        self
    }

    /// How clients of model APIs, such as OpenAI's, call it. Default: not at all; see [`Task`].
    pub fn task(mut self, task: Task) -> Self {
        self.parts.task = Some(task);
        self
    }

    /// Other names by which clients of model APIs ask for a route with a [task](Self::task): those that are wired into
    /// them, such as `gpt-4o-mini`. Default: none; its own is its name without the leading slash. Two routes with one
    /// of them are an error at the start.
    pub fn aliases<S: Into<String>>(mut self, aliases: impl IntoIterator<Item = S>) -> Self {
        self.parts.aliases = aliases.into_iter().map(Into::into).collect();
        self
    }

    /// Lets agents call it as a tool, such as by the Model Context Protocol. Default: no. Its
    /// [description](Self::description) tells them what it does, so it needs one.
    ///
    /// ```
    /// use callboard_core::{RouteSpec, Stage};
    ///
    /// let length = Stage::each("length", |text: &String| Ok(text.len()));
    /// let route = RouteSpec::new("/length", length).description("The number of bytes of a text.").tool();
    /// ```
    pub fn tool(mut self) -> Self {
        self.parts.is_tool = true;
        self
    }

    /// Lets stages of this route read the value of this type that a layer around a mounted HTTP edge has put into the
    /// extensions of the request ([`CallContext::extension`](crate::CallContext::extension)): what the layer knows of
    /// the caller, as a Rust value. Other extensions of a request stay with the edge. Called once for each type.
    ///
    /// Such a value stays in this process: a call that has one runs its stages on this node, and a stage in a child
    /// process or a [remote](crate::Pipeline::remote) stage sees none.
    pub fn extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        let extension = RequestExtension::of::<T>();
        self.change_request_fields(|fields| {
            if !fields.extensions.contains(&extension) {
                fields.extensions.push(extension);
            }
        });
        self
    }

    fn change_request_fields(&mut self, change: impl FnOnce(&mut RequestFields)) {
        let mut fields = self.parts.request_fields.as_deref().cloned().unwrap_or_default();
        change(&mut fields);
        self.parts.request_fields = Some(Arc::new(fields)).filter(|fields| **fields != RequestFields::default());
    }

    /// One line for readers of the documentation.
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.parts.summary = summary.into();
        self
    }

    /// What it does, in as many words as a caller needs. Default: the [summary](Self::summary). Models choose
    /// [tools](Self::tool) by it.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.parts.description = description.into();
        self
    }

    /// The most calls in flight on this route; one more is refused with `Overloaded` before its body is read. Default:
    /// only the node's [`Limits`](crate::Limits). Set it if one route could take all of the node's permits. 0 counts as
    /// 1.
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.parts.limits.max_in_flight = Some(NonZeroUsize::new(calls).unwrap_or(NonZeroUsize::MIN));
        self
    }

    /// The deadline of calls that set none. Default: [`Limits::default_timeout`](crate::Limits::default_timeout).
    pub fn default_timeout(mut self, timeout: Duration) -> Self {
        self.parts.limits.timeout = Some(timeout);
        self
    }

    /// The longest time for a call of this route, whatever its caller sets. Default: only
    /// [`Limits::max_timeout`](crate::Limits::max_timeout). A longer timeout is shortened to it, including the route's
    /// own default.
    pub fn max_timeout(mut self, timeout: Duration) -> Self {
        self.parts.limits.max_timeout = Some(timeout);
        self
    }

    /// The priority of calls that set none. Default [`Priority::Normal`].
    pub fn default_priority(mut self, priority: Priority) -> Self {
        self.parts.limits.priority = priority;
        self
    }

    /// A working input, for the documentation and for checks.
    pub fn example(mut self, example: Value) -> Self {
        self.parts.examples.push(example);
        self
    }

    /// A working input as a Rust value.
    ///
    /// # Errors
    ///
    /// If it cannot be expressed as a [`Value`].
    pub fn example_of<In: Data>(self, example: &In) -> Result<Self, EncodeError> {
        let value = Value::from_serialize(example)?;
        Ok(self.example(value))
    }

    /// Its public name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Its stages in order, wherever they run.
    #[must_use]
    pub fn stages(&self) -> Vec<StageName> {
        self.graph.stage_names(|spec| spec.name())
    }

    /// The steps of its pipeline.
    #[must_use]
    pub fn plan(&self) -> PipelinePlan<StageOutline> {
        self.graph.plan(|spec| (spec.name(), spec.settings()))
    }
}

impl fmt::Debug for RouteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteSpec").field("name", &self.name).field("stages", &self.stages()).finish_non_exhaustive()
    }
}

/// Each stage once, in the order of first use; a host before the stages that its replicas run.
pub(crate) fn distinct_stages<'a>(routes: impl IntoIterator<Item = &'a RouteSpec>) -> Vec<Arc<StageSpec>> {
    let mut stages: Vec<Arc<StageSpec>> = Vec::new();
    let used = routes.into_iter().flat_map(|route| route.graph.stages());
    for spec in used.flat_map(|spec| spec.host().into_iter().chain([spec])) {
        if !stages.iter().any(|seen| Arc::ptr_eq(seen, spec)) {
            stages.push(Arc::clone(spec));
        }
    }
    stages
}

/// The characters of a route's name: those of a URL path that need no escape. A segment may be a parameter, such as
/// `{item_id}`, each of another name. A method and a space may come before the path: see [`RouteSpec::methods`]. A name
/// may also be `@` with a word, and perhaps a path without parameters: such a route is private, which means that no
/// edge serves or shows it, and only this process calls it.
///
/// # Errors
///
/// [`ChangeError::BadRouteName`], as a start or a change with such a route would answer.
pub fn check_route_name(route: &RouteName) -> Result<(), ChangeError> {
    let name = split_route_name(route.as_str()).1;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~:@".contains(&byte);
    let well_formed = name.len() > 1
        && (name.starts_with('/') || (name.len() > 2 && name.starts_with('@') && !name.contains('{')))
        && !name.ends_with('/')
        && !name.contains("//")
        && name.split('/').all(|segment| {
            is_parameter(segment) || (segment.bytes().all(allowed) && segment != "." && segment != "..")
        })
        && parameters(name).all(|parameter| parameters(name).filter(|other| *other == parameter).count() == 1);
    if well_formed { Ok(()) } else { Err(ChangeError::BadRouteName { route: route.clone() }) }
}
