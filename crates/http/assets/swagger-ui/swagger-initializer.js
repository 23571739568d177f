window.onload = function() {
  window.ui = SwaggerUIBundle({
    dom_id: "#swagger-ui",
    // Relative, so that it works behind a proxy with a path prefix.
    url: "../openapi.json?forms",
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    validatorUrl: "none",
    layout: "StandaloneLayout",
    presets: [
      SwaggerUIBundle.presets.apis,
      SwaggerUIStandalonePreset
    ],
    plugins: [
      SwaggerUIBundle.plugins.DownloadUrl
    ],
  });
};
