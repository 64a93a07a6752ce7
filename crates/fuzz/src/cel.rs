//! CEL expressions: any text either fails to compile or is evaluated, in bounded time, depth and memory.
//!
//! The input is an expression and, after a separator, the value of `self` as JSON.

use knarr_cel as cel;
use serde_json::{Value, json};

use crate::{PART, Target};

pub const TARGET: Target = Target {
    name: "cel",
    check: |data| {
        let mut parts = data.splitn(2, |byte| *byte == PART);
        let Some(Ok(text)) = parts.next().map(std::str::from_utf8) else {
            return;
        };
        let value = parts.next().and_then(|json| serde_json::from_slice(json).ok());
        let value: Value =
            value.unwrap_or_else(|| json!({"a": [1, 2, 3], "name": "x", "size": "5Gi", "when": null}));
        let Ok(program) = cel::Program::read(text) else {
            return;
        };
        let _ = program.uses("self");
        let mut scope = cel::Scope::default();
        scope.set("self", cel::of_json(&value));
        scope.set("oldSelf", cel::of_json(&value));
        if let Ok(value) = program.run(&scope) {
            let _ = cel::to_json(&value);
        }
    },
    seeds: || {
        [
            "self.a.all(x, x > 0) && has(self.name)",
            "self.a.map(x, x * 2).filter(y, y != 4).exists(z, z == 6)",
            "quantity(self.size).isLessThan(quantity('10Gi'))",
            "self.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') ? 'a'.size() : -1",
            "isURL('https://a:1/b?c=d') && url('https://a:1/b').getHost() == 'a:1'",
            "ip('::1').isLoopback() && cidr('10.0.0.0/8').containsIP('10.1.2.3')",
            "'%s %d'.format([self.name, 5]).split(' ').join(',').replace('x', 'y').substring(1)",
            "duration('1h') + timestamp('2024-01-01T00:00:00Z') > timestamp('2023-01-01T00:00:00Z')",
            "self.a.sum() + self.a.max() - self.a.indexOf(2) / 0 % 3",
            "optional.of(self.?name).orValue('none') == 'x' || oldSelf.?b.hasValue()",
            "{'a': 1, 'b': [2u, 3.0, b'x', null, true]}['b'][0]",
            "semver('1.2.3').isGreaterThan(semver('1.0.0')) && sets.contains([1,2],[1])",
            "'aaaa'.find('a+') + string(9223372036854775807) + string(int('-5')) + string(uint(7) - 8u)",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into()
    },
};
