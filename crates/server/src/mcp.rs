//! The Model Context Protocol of a server.

use callboard_http::ApiInfo;
use callboard_mcp::McpConfig;

/// What agents read of a server: the title, version and description of its OpenAPI document.
#[must_use]
pub fn mcp_config(info: &ApiInfo) -> McpConfig {
    McpConfig {
        name: info.title.clone(),
        version: info.version.clone(),
        instructions: info.description.clone(),
        ..McpConfig::default()
    }
}
