//! Shared by the commands that call a server: the URL and the request.

pub(crate) mod args;
pub(crate) mod arguments;
mod form;
pub(crate) mod payload;
mod server_url;
mod tensor;
pub(crate) mod trust;
pub(crate) mod value;

pub(crate) use args::RequestArgs;
pub(crate) use server_url::ServerUrl;
