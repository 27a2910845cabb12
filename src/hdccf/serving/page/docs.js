// The REST reference: Swagger UI on this server's own description, without the validator of another host.

SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
