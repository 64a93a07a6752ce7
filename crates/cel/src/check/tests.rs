//! The types that expressions are found to have, and the errors of those that do not compile.

use crate::check::{Declared, Environment, Type};
use crate::compile;

fn environment() -> Environment {
    let inner = Declared::object("Self.inner", [("flag", Declared::simple(Type::Bool, 4, 0))]);
    let of_self = Declared::object(
        "Self",
        [
            ("n", Declared::simple(Type::Int, 1, 0)),
            ("d", Declared::simple(Type::Double, 1, 0)),
            ("s", Declared::string()),
            ("t", Declared::simple(Type::Timestamp, 21, 32)),
            ("list", Declared::list(Declared::string(), 10)),
            ("objects", Declared::list(inner.clone(), 10)),
            ("map", Declared::map(Declared::simple(Type::Int, 1, 0), 10)),
            ("any", Declared::simple(Type::Dyn, 1, 0)),
            ("inner", inner),
        ],
    );
    let optional = Type::optional(of_self.cel_type());
    Environment::default()
        .with_declared("self", &of_self)
        .with("oldSelf", optional)
}

fn found(text: &str) -> String {
    match compile(text, &environment()) {
        Ok(compiled) => compiled.output().to_string(),
        Err(why) => why.to_string(),
    }
}

#[test]
fn parts_have_the_result_types_of_their_functions() {
    for (text, want) in [
        ("self.n + 1", "int"),
        ("self.n < 1.5", "bool"),
        ("self.s + 'x'", "string"),
        ("self.any + 1", "int"),
        ("self.any.x.y", "dyn"),
        ("self.any == 1 && self.any == 'x'", "bool"),
        ("self.list[0]", "string"),
        ("self.map['a']", "int"),
        ("self.map.a", "int"),
        ("self.list.map(x, x.size())", "list(int)"),
        ("self.list.filter(x, x != '')", "list(string)"),
        ("self.list.all(x, x.startsWith('a'))", "bool"),
        ("self.map.exists(k, self.map[k] > 1)", "bool"),
        ("self.list.exists_one(x, x == 'a')", "bool"),
        ("self.objects.map(o, o.flag)", "list(bool)"),
        ("has(self.inner.flag)", "bool"),
        ("self.?inner.flag", "optional_type(bool)"),
        ("self.?inner.?flag.orValue(true)", "bool"),
        ("self.list[?0].orValue('')", "string"),
        ("oldSelf.n.orValue(1)", "int"),
        ("oldSelf.optMap(o, o.n + 1).orValue(0)", "int"),
        ("optional.none()", "optional_type(dyn)"),
        (
            "optional.of(1).optFlatMap(x, optional.of(string(x)))",
            "optional_type(string)",
        ),
        ("[]", "list(dyn)"),
        ("{'a': 1}", "map(string, int)"),
        ("[?oldSelf.n, 1]", "list(int)"),
        ("true ? 1 : self.any", "dyn"),
        ("type(1)", "type(int)"),
        ("type(self.any) == int", "bool"),
        (
            "self.t - timestamp('2020-01-01T00:00:00Z') > duration('1h')",
            "bool",
        ),
        ("self.t.getFullYear()", "int"),
        ("quantity('1Gi')", "kubernetes.Quantity"),
        ("ip('::1').family()", "int"),
        ("ip.isCanonical('::1')", "bool"),
        ("url('http://a').getQuery()", "map(string, list(string))"),
        (
            "format.dns1123Label().validate('a')",
            "optional_type(list(string))",
        ),
        (
            "self.list.isSorted() && self.list.sort() == self.list.distinct()",
            "bool",
        ),
        ("self.list.sortBy(x, x.size())", "list(string)"),
        ("'%s %d'.format(['a', string(1)])", "string"),
        ("sets.contains(self.list, ['a'])", "bool"),
        ("null", "null"),
        ("self.inner == null", "bool"),
    ] {
        assert_eq!(found(text), want, "{text}");
    }
}

#[test]
fn errors_have_their_positions() {
    for (text, want) in [
        ("self.foo", "1:5: undefined field 'foo'"),
        ("has(self.foo)", "1:4: undefined field 'foo'"),
        (
            "self.n == 'x'",
            "1:8: found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (
            "self.n + self.d",
            "1:8: found no matching overload for '_+_' applied to '(int, double)'",
        ),
        (
            "self.s.size(1)",
            "1:12: found no matching overload for 'size' applied to 'string.(int)'",
        ),
        (
            "-self.s",
            "1:1: found no matching overload for '-_' applied to '(string)'",
        ),
        (
            "self.list['a']",
            "1:10: found no matching overload for '_[_]' applied to '(list(string), string)'",
        ),
        ("x == 1", "1:1: undeclared reference to 'x' (in container '')"),
        ("f(1)", "1:2: undeclared reference to 'f' (in container '')"),
        ("self.n.f()", "1:9: undeclared reference to 'f' (in container '')"),
        ("self.n.foo", "1:7: type 'int' does not support field selection"),
        ("self.n && true", "1:5: expected type 'bool' but found 'int'"),
        ("[1, 'a']", "1:5: expected type 'int' but found 'string'"),
        ("[1, dyn('a')]", "1:8: expected type 'int' but found 'dyn'"),
        ("{'a': 1, 2: 3}", "1:10: expected type 'string' but found 'int'"),
        (
            "self.n.all(x, true)",
            "1:5: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        (
            "self.list.all(x, x)",
            "1:18: expected type 'bool' but found 'string'",
        ),
        (
            "duration('x') > duration('1s')",
            "1:10: invalid duration argument",
        ),
        ("timestamp('x') < self.t", "1:11: invalid timestamp argument"),
        ("self.s.matches('(')", "1:16: invalid matches argument"),
        (
            "math.greatest(1, 2) > 1",
            "1:1: undeclared reference to 'math' (in container '')",
        ),
        (
            "quantity('1').foo",
            "1:14: unexpected failed resolution of 'kubernetes.Quantity'",
        ),
        (
            "Object{a: 1}",
            "1:7: undeclared reference to 'Object' (in container '')",
        ),
        (
            "true ? 1 : 'a'",
            "1:6: found no matching overload for '_?_:_' applied to '(bool, int, string)'",
        ),
        (
            "self.n in self.list",
            "1:8: found no matching overload for '@in' applied to '(int, list(string))'",
        ),
        (
            "jsonpatch.escapeKey('a')",
            "1:1: undeclared reference to 'jsonpatch' (in container '')",
        ),
    ] {
        let whole = found(text);
        let first = whole.lines().next().unwrap_or_default();
        assert_eq!(first, format!("ERROR: <input>:{want}"), "{text}");
    }
}

#[test]
fn all_errors_are_shown_in_the_order_of_the_text() {
    assert_eq!(
        found("self.n == 'é' &&\n\t self.foo"),
        "ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(int, string)'\n | self.n == 'é' &&\n | .......^\n\
         ERROR: <input>:2:7: undefined field 'foo'\n |   self.foo\n | ......^"
    );
    assert_eq!(
        found("'é' + self.foo"),
        "ERROR: <input>:1:11: undefined field 'foo'\n | 'é' + self.foo\n | .．........^"
    );
}

#[test]
fn an_expression_that_nests_too_deeply_is_rejected() {
    let long = vec!["1"; 300].join(" + ");
    assert_eq!(found(&long), "expression recursion limit exceeded: 250");
    let wide = vec!["self.n > 1"; 300].join(" && ");
    assert_eq!(found(&wide), "bool");
}
