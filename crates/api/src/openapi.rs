//! OpenAPI documents, made from the registry and the types' schemas.

use serde_json::Value;

/// `GET /openapi/v2` (swagger 2.0).
pub fn v2() -> Value {
    Value::Null
}

/// `GET /openapi/v3`: the paths with their documents' URLs (with a hash for caching).
pub fn v3_index() -> Value {
    Value::Null
}

/// `GET /openapi/v3/{path}`, such as `apis/apps/v1`; `None` for an unknown one.
pub fn v3(_path: &str) -> Option<Value> {
    None
}
