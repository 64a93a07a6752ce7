//! The table of the functions that Kubernetes' expressions can call; [`declarations`](super::declarations) reads it.
//!
//! Each function is here once, with a line for each overload: its name in references and costs, and its signature. A signature
//! that begins with a type and a dot is called on a value of that type. Capital letters are type parameters.

pub(super) const FUNCTIONS: &[(&str, &str)] = &[
    ("_?_:_", "conditional (bool, A, A) -> A"),
    ("_&&_", "logical_and (bool, bool) -> bool"),
    ("_||_", "logical_or (bool, bool) -> bool"),
    ("!_", "logical_not (bool) -> bool"),
    ("@not_strictly_false", "not_strictly_false (bool) -> bool"),
    ("_==_", "equals (A, A) -> bool"),
    ("_!=_", "not_equals (A, A) -> bool"),
    (
        "_+_",
        "add_bytes (bytes, bytes) -> bytes
        add_double (double, double) -> double
        add_duration_duration (duration, duration) -> duration
        add_duration_timestamp (duration, timestamp) -> timestamp
        add_timestamp_duration (timestamp, duration) -> timestamp
        add_int64 (int, int) -> int
        add_list (list(A), list(A)) -> list(A)
        add_string (string, string) -> string
        add_uint64 (uint, uint) -> uint",
    ),
    (
        "_/_",
        "divide_double (double, double) -> double
        divide_int64 (int, int) -> int
        divide_uint64 (uint, uint) -> uint",
    ),
    ("_%_", "modulo_int64 (int, int) -> int\nmodulo_uint64 (uint, uint) -> uint"),
    (
        "_*_",
        "multiply_double (double, double) -> double
        multiply_int64 (int, int) -> int
        multiply_uint64 (uint, uint) -> uint",
    ),
    ("-_", "negate_double (double) -> double\nnegate_int64 (int) -> int"),
    (
        "_-_",
        "subtract_double (double, double) -> double
        subtract_duration_duration (duration, duration) -> duration
        subtract_int64 (int, int) -> int
        subtract_timestamp_duration (timestamp, duration) -> timestamp
        subtract_timestamp_timestamp (timestamp, timestamp) -> duration
        subtract_uint64 (uint, uint) -> uint",
    ),
    (
        "_<_",
        "less_bool (bool, bool) -> bool
        less_int64 (int, int) -> bool
        less_int64_double (int, double) -> bool
        less_int64_uint64 (int, uint) -> bool
        less_uint64 (uint, uint) -> bool
        less_uint64_double (uint, double) -> bool
        less_uint64_int64 (uint, int) -> bool
        less_double (double, double) -> bool
        less_double_int64 (double, int) -> bool
        less_double_uint64 (double, uint) -> bool
        less_string (string, string) -> bool
        less_bytes (bytes, bytes) -> bool
        less_timestamp (timestamp, timestamp) -> bool
        less_duration (duration, duration) -> bool",
    ),
    (
        "_<=_",
        "less_equals_bool (bool, bool) -> bool
        less_equals_int64 (int, int) -> bool
        less_equals_int64_double (int, double) -> bool
        less_equals_int64_uint64 (int, uint) -> bool
        less_equals_uint64 (uint, uint) -> bool
        less_equals_uint64_double (uint, double) -> bool
        less_equals_uint64_int64 (uint, int) -> bool
        less_equals_double (double, double) -> bool
        less_equals_double_int64 (double, int) -> bool
        less_equals_double_uint64 (double, uint) -> bool
        less_equals_string (string, string) -> bool
        less_equals_bytes (bytes, bytes) -> bool
        less_equals_timestamp (timestamp, timestamp) -> bool
        less_equals_duration (duration, duration) -> bool",
    ),
    (
        "_>_",
        "greater_bool (bool, bool) -> bool
        greater_int64 (int, int) -> bool
        greater_int64_double (int, double) -> bool
        greater_int64_uint64 (int, uint) -> bool
        greater_uint64 (uint, uint) -> bool
        greater_uint64_double (uint, double) -> bool
        greater_uint64_int64 (uint, int) -> bool
        greater_double (double, double) -> bool
        greater_double_int64 (double, int) -> bool
        greater_double_uint64 (double, uint) -> bool
        greater_string (string, string) -> bool
        greater_bytes (bytes, bytes) -> bool
        greater_timestamp (timestamp, timestamp) -> bool
        greater_duration (duration, duration) -> bool",
    ),
    (
        "_>=_",
        "greater_equals_bool (bool, bool) -> bool
        greater_equals_int64 (int, int) -> bool
        greater_equals_int64_double (int, double) -> bool
        greater_equals_int64_uint64 (int, uint) -> bool
        greater_equals_uint64 (uint, uint) -> bool
        greater_equals_uint64_double (uint, double) -> bool
        greater_equals_uint64_int64 (uint, int) -> bool
        greater_equals_double (double, double) -> bool
        greater_equals_double_int64 (double, int) -> bool
        greater_equals_double_uint64 (double, uint) -> bool
        greater_equals_string (string, string) -> bool
        greater_equals_bytes (bytes, bytes) -> bool
        greater_equals_timestamp (timestamp, timestamp) -> bool
        greater_equals_duration (duration, duration) -> bool",
    ),
    (
        "_[_]",
        "index_list (list(A), int) -> A
        index_map (map(A, B), A) -> B
        optional_list_index_int (optional_type(list(V)), int) -> optional_type(V)
        optional_map_index_value (optional_type(map(K, V)), K) -> optional_type(V)",
    ),
    (
        "_[?_]",
        "list_optindex_optional_int (list(V), int) -> optional_type(V)
        optional_list_optindex_optional_int (optional_type(list(V)), int) -> optional_type(V)
        map_optindex_optional_value (map(K, V), K) -> optional_type(V)
        optional_map_optindex_optional_value (optional_type(map(K, V)), K) -> optional_type(V)",
    ),
    ("@in", "in_list (A, list(A)) -> bool\nin_map (A, map(A, B)) -> bool"),
    (
        "size",
        "size_bytes (bytes) -> int
        bytes_size bytes.() -> int
        size_list (list(A)) -> int
        list_size list(A).() -> int
        size_map (map(A, B)) -> int
        map_size map(A, B).() -> int
        size_string (string) -> int
        string_size string.() -> int",
    ),
    ("type", "type (A) -> type(A)"),
    ("bool", "bool_to_bool (bool) -> bool\nstring_to_bool (string) -> bool"),
    ("bytes", "bytes_to_bytes (bytes) -> bytes\nstring_to_bytes (string) -> bytes"),
    (
        "double",
        "double_to_double (double) -> double
        int64_to_double (int) -> double
        string_to_double (string) -> double
        uint64_to_double (uint) -> double",
    ),
    (
        "duration",
        "duration_to_duration (duration) -> duration
        int64_to_duration (int) -> duration
        string_to_duration (string) -> duration",
    ),
    ("dyn", "to_dyn (A) -> dyn"),
    (
        "int",
        "int64_to_int64 (int) -> int
        double_to_int64 (double) -> int
        duration_to_int64 (duration) -> int
        string_to_int64 (string) -> int
        timestamp_to_int64 (timestamp) -> int
        uint64_to_int64 (uint) -> int",
    ),
    (
        "string",
        "string_to_string (string) -> string
        bool_to_string (bool) -> string
        bytes_to_string (bytes) -> string
        double_to_string (double) -> string
        duration_to_string (duration) -> string
        int64_to_string (int) -> string
        timestamp_to_string (timestamp) -> string
        uint64_to_string (uint) -> string
        ip_to_string (net.IP) -> string
        cidr_to_string (net.CIDR) -> string",
    ),
    (
        "timestamp",
        "timestamp_to_timestamp (timestamp) -> timestamp
        int64_to_timestamp (int) -> timestamp
        string_to_timestamp (string) -> timestamp",
    ),
    (
        "uint",
        "uint64_to_uint64 (uint) -> uint
        double_to_uint64 (double) -> uint
        int64_to_uint64 (int) -> uint
        string_to_uint64 (string) -> uint",
    ),
    ("contains", "contains_string string.(string) -> bool"),
    ("endsWith", "ends_with_string string.(string) -> bool"),
    ("startsWith", "starts_with_string string.(string) -> bool"),
    ("matches", "matches (string, string) -> bool\nmatches_string string.(string) -> bool"),
    (
        "getFullYear",
        "timestamp_to_year timestamp.() -> int
        timestamp_to_year_with_tz timestamp.(string) -> int",
    ),
    (
        "getMonth",
        "timestamp_to_month timestamp.() -> int
        timestamp_to_month_with_tz timestamp.(string) -> int",
    ),
    (
        "getDayOfYear",
        "timestamp_to_day_of_year timestamp.() -> int
        timestamp_to_day_of_year_with_tz timestamp.(string) -> int",
    ),
    (
        "getDayOfMonth",
        "timestamp_to_day_of_month timestamp.() -> int
        timestamp_to_day_of_month_with_tz timestamp.(string) -> int",
    ),
    (
        "getDate",
        "timestamp_to_day_of_month_1_based timestamp.() -> int
        timestamp_to_day_of_month_1_based_with_tz timestamp.(string) -> int",
    ),
    (
        "getDayOfWeek",
        "timestamp_to_day_of_week timestamp.() -> int
        timestamp_to_day_of_week_with_tz timestamp.(string) -> int",
    ),
    (
        "getHours",
        "timestamp_to_hours timestamp.() -> int
        timestamp_to_hours_with_tz timestamp.(string) -> int
        duration_to_hours duration.() -> int",
    ),
    (
        "getMinutes",
        "timestamp_to_minutes timestamp.() -> int
        timestamp_to_minutes_with_tz timestamp.(string) -> int
        duration_to_minutes duration.() -> int",
    ),
    (
        "getSeconds",
        "timestamp_to_seconds timestamp.() -> int
        timestamp_to_seconds_tz timestamp.(string) -> int
        duration_to_seconds duration.() -> int",
    ),
    (
        "getMilliseconds",
        "timestamp_to_milliseconds timestamp.() -> int
        timestamp_to_milliseconds_with_tz timestamp.(string) -> int
        duration_to_milliseconds duration.() -> int",
    ),
    // Optional values.
    ("optional.of", "optional_of (V) -> optional_type(V)"),
    ("optional.ofNonZeroValue", "optional_ofNonZeroValue (V) -> optional_type(V)"),
    ("optional.none", "optional_none () -> optional_type(V)"),
    ("optional.unwrap", "optional_unwrap (list(optional_type(V))) -> list(V)"),
    ("unwrapOpt", "optional_unwrapOpt list(optional_type(V)).() -> list(V)"),
    ("value", "optional_value optional_type(V).() -> V"),
    ("hasValue", "optional_hasValue optional_type(V).() -> bool"),
    ("or", "optional_or_optional optional_type(V).(optional_type(V)) -> optional_type(V)"),
    ("orValue", "optional_orValue_value optional_type(V).(V) -> V"),
    ("first", "list_first list(V).() -> optional_type(V)"),
    ("last", "list_last list(V).() -> optional_type(V)"),
    // Strings.
    ("charAt", "string_char_at_int string.(int) -> string"),
    (
        "indexOf",
        "string_index_of_string string.(string) -> int
        string_index_of_string_int string.(string, int) -> int
        list_a_index_of_int list(T).(T) -> int",
    ),
    (
        "lastIndexOf",
        "string_last_index_of_string string.(string) -> int
        string_last_index_of_string_int string.(string, int) -> int
        list_a_last_index_of_int list(T).(T) -> int",
    ),
    ("lowerAscii", "string_lower_ascii string.() -> string"),
    ("upperAscii", "string_upper_ascii string.() -> string"),
    (
        "replace",
        "string_replace_string_string string.(string, string) -> string
        string_replace_string_string_int string.(string, string, int) -> string",
    ),
    (
        "split",
        "string_split_string string.(string) -> list(string)
        string_split_string_int string.(string, int) -> list(string)",
    ),
    (
        "substring",
        "string_substring_int string.(int) -> string
        string_substring_int_int string.(int, int) -> string",
    ),
    ("trim", "string_trim string.() -> string"),
    ("format", "string_format string.(list(dyn)) -> string"),
    ("strings.quote", "strings_quote (string) -> string"),
    (
        "join",
        "list_join list(string).() -> string
        list_join_string list(string).(string) -> string",
    ),
    // Sets.
    ("sets.contains", "list_sets_contains_list (list(T), list(T)) -> bool"),
    ("sets.equivalent", "list_sets_equivalent_list (list(T), list(T)) -> bool"),
    ("sets.intersects", "list_sets_intersects_list (list(T), list(T)) -> bool"),
    // Lists.
    ("slice", "list_slice list(T).(int, int) -> list(T)"),
    (
        "flatten",
        "list_flatten list(list(T)).() -> list(T)
        list_flatten_int list(dyn).(int) -> list(dyn)",
    ),
    (
        "sort",
        "list_int_sort list(int).() -> list(int)
        list_uint_sort list(uint).() -> list(uint)
        list_double_sort list(double).() -> list(double)
        list_bool_sort list(bool).() -> list(bool)
        list_duration_sort list(duration).() -> list(duration)
        list_timestamp_sort list(timestamp).() -> list(timestamp)
        list_string_sort list(string).() -> list(string)
        list_bytes_sort list(bytes).() -> list(bytes)",
    ),
    (
        "@sortByAssociatedKeys",
        "list_int_sortByAssociatedKeys list(T).(list(int)) -> list(T)
        list_uint_sortByAssociatedKeys list(T).(list(uint)) -> list(T)
        list_double_sortByAssociatedKeys list(T).(list(double)) -> list(T)
        list_bool_sortByAssociatedKeys list(T).(list(bool)) -> list(T)
        list_duration_sortByAssociatedKeys list(T).(list(duration)) -> list(T)
        list_timestamp_sortByAssociatedKeys list(T).(list(timestamp)) -> list(T)
        list_string_sortByAssociatedKeys list(T).(list(string)) -> list(T)
        list_bytes_sortByAssociatedKeys list(T).(list(bytes)) -> list(T)",
    ),
    ("lists.range", "lists_range (int) -> list(int)"),
    ("reverse", "list_reverse list(T).() -> list(T)"),
    ("distinct", "list_distinct list(T).() -> list(T)"),
    (
        "isSorted",
        "list_int_is_sorted_bool list(int).() -> bool
        list_uint_is_sorted_bool list(uint).() -> bool
        list_double_is_sorted_bool list(double).() -> bool
        list_bool_is_sorted_bool list(bool).() -> bool
        list_string_is_sorted_bool list(string).() -> bool
        list_bytes_is_sorted_bool list(bytes).() -> bool
        list_duration_is_sorted_bool list(duration).() -> bool
        list_timestamp_is_sorted_bool list(timestamp).() -> bool",
    ),
    (
        "sum",
        "list_int_sum_int list(int).() -> int
        list_uint_sum_uint list(uint).() -> uint
        list_double_sum_double list(double).() -> double
        list_duration_sum_duration list(duration).() -> duration",
    ),
    (
        "max",
        "list_int_max_int list(int).() -> int
        list_uint_max_uint list(uint).() -> uint
        list_double_max_double list(double).() -> double
        list_bool_max_bool list(bool).() -> bool
        list_string_max_string list(string).() -> string
        list_bytes_max_bytes list(bytes).() -> bytes
        list_duration_max_duration list(duration).() -> duration
        list_timestamp_max_timestamp list(timestamp).() -> timestamp",
    ),
    (
        "min",
        "list_int_min_int list(int).() -> int
        list_uint_min_uint list(uint).() -> uint
        list_double_min_double list(double).() -> double
        list_bool_min_bool list(bool).() -> bool
        list_string_min_string list(string).() -> string
        list_bytes_min_bytes list(bytes).() -> bytes
        list_duration_min_duration list(duration).() -> duration
        list_timestamp_min_timestamp list(timestamp).() -> timestamp",
    ),
    // Maps.
    (
        "cel.@mapInsert",
        "@mapInsert_map_key_value (map(K, V), K, V) -> map(K, V)
        @mapInsert_map_map (map(K, V), map(K, V)) -> map(K, V)",
    ),
    // Regular expressions.
    ("find", "string_find_string string.(string) -> string"),
    (
        "findAll",
        "string_find_all_string string.(string) -> list(string)
        string_find_all_string_int string.(string, int) -> list(string)",
    ),
    // URLs.
    ("url", "string_to_url (string) -> kubernetes.URL"),
    ("isURL", "is_url_string (string) -> bool"),
    ("getScheme", "url_get_scheme kubernetes.URL.() -> string"),
    ("getHost", "url_get_host kubernetes.URL.() -> string"),
    ("getHostname", "url_get_hostname kubernetes.URL.() -> string"),
    ("getPort", "url_get_port kubernetes.URL.() -> string"),
    ("getEscapedPath", "url_get_escaped_path kubernetes.URL.() -> string"),
    ("getQuery", "url_get_query kubernetes.URL.() -> map(string, list(string))"),
    // Addresses.
    ("ip", "string_to_ip (string) -> net.IP\ncidr_ip net.CIDR.() -> net.IP"),
    ("ip.isCanonical", "ip_is_canonical (string) -> bool"),
    ("isIP", "is_ip (string) -> bool"),
    ("family", "ip_family net.IP.() -> int"),
    ("isUnspecified", "ip_is_unspecified net.IP.() -> bool"),
    ("isLoopback", "ip_is_loopback net.IP.() -> bool"),
    ("isLinkLocalMulticast", "ip_is_link_local_multicast net.IP.() -> bool"),
    ("isLinkLocalUnicast", "ip_is_link_local_unicast net.IP.() -> bool"),
    ("isGlobalUnicast", "ip_is_global_unicast net.IP.() -> bool"),
    ("cidr", "string_to_cidr (string) -> net.CIDR"),
    ("isCIDR", "is_cidr (string) -> bool"),
    (
        "containsIP",
        "cidr_contains_ip_string net.CIDR.(string) -> bool
        cidr_contains_ip_ip net.CIDR.(net.IP) -> bool",
    ),
    (
        "containsCIDR",
        "cidr_contains_cidr_string net.CIDR.(string) -> bool
        cidr_contains_cidr net.CIDR.(net.CIDR) -> bool",
    ),
    ("prefixLength", "cidr_prefix_length net.CIDR.() -> int"),
    ("masked", "cidr_masked net.CIDR.() -> net.CIDR"),
    // Quantities and versions. Kubernetes declares `sign` as a function only, but writes of it as a method; both are
    // taken.
    ("quantity", "string_to_quantity (string) -> kubernetes.Quantity"),
    ("isQuantity", "is_quantity_string (string) -> bool"),
    ("sign", "quantity_sign (kubernetes.Quantity) -> int\nquantity_sign kubernetes.Quantity.() -> int"),
    (
        "isGreaterThan",
        "quantity_is_greater_than kubernetes.Quantity.(kubernetes.Quantity) -> bool
        semver_is_greater_than kubernetes.Semver.(kubernetes.Semver) -> bool",
    ),
    (
        "isLessThan",
        "quantity_is_less_than kubernetes.Quantity.(kubernetes.Quantity) -> bool
        semver_is_less_than kubernetes.Semver.(kubernetes.Semver) -> bool",
    ),
    (
        "compareTo",
        "quantity_compare_to kubernetes.Quantity.(kubernetes.Quantity) -> int
        semver_compare_to kubernetes.Semver.(kubernetes.Semver) -> int",
    ),
    ("asApproximateFloat", "quantity_get_float kubernetes.Quantity.() -> double"),
    ("asInteger", "quantity_get_int kubernetes.Quantity.() -> int"),
    ("isInteger", "quantity_is_integer kubernetes.Quantity.() -> bool"),
    (
        "add",
        "quantity_add kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity
        quantity_add_int kubernetes.Quantity.(int) -> kubernetes.Quantity",
    ),
    (
        "sub",
        "quantity_sub kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity
        quantity_sub_int kubernetes.Quantity.(int) -> kubernetes.Quantity",
    ),
    (
        "semver",
        "string_to_semver (string) -> kubernetes.Semver
        string_bool_to_semver (string, bool) -> kubernetes.Semver",
    ),
    (
        "isSemver",
        "is_semver_string (string) -> bool
        is_semver_string_bool (string, bool) -> bool",
    ),
    ("major", "semver_major kubernetes.Semver.() -> int"),
    ("minor", "semver_minor kubernetes.Semver.() -> int"),
    ("patch", "semver_patch kubernetes.Semver.() -> int"),
    // Formats.
    ("format.named", "format-named (string) -> optional_type(kubernetes.NamedFormat)"),
    ("format.dns1123Label", "format.dns1123Label () -> kubernetes.NamedFormat"),
    ("format.dns1123Subdomain", "format.dns1123Subdomain () -> kubernetes.NamedFormat"),
    ("format.dns1035Label", "format.dns1035Label () -> kubernetes.NamedFormat"),
    ("format.qualifiedName", "format.qualifiedName () -> kubernetes.NamedFormat"),
    ("format.dns1123LabelPrefix", "format.dns1123LabelPrefix () -> kubernetes.NamedFormat"),
    (
        "format.dns1123SubdomainPrefix",
        "format.dns1123SubdomainPrefix () -> kubernetes.NamedFormat",
    ),
    ("format.dns1035LabelPrefix", "format.dns1035LabelPrefix () -> kubernetes.NamedFormat"),
    ("format.labelValue", "format.labelValue () -> kubernetes.NamedFormat"),
    ("format.uri", "format.uri () -> kubernetes.NamedFormat"),
    ("format.uuid", "format.uuid () -> kubernetes.NamedFormat"),
    ("format.byte", "format.byte () -> kubernetes.NamedFormat"),
    ("format.date", "format.date () -> kubernetes.NamedFormat"),
    ("format.datetime", "format.datetime () -> kubernetes.NamedFormat"),
    ("validate", "format-validate kubernetes.NamedFormat.(string) -> optional_type(list(string))"),
    // The authorizer.
    (
        "path",
        "authorizer_path kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.PathCheck",
    ),
    (
        "group",
        "authorizer_group kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.GroupCheck",
    ),
    (
        "serviceAccount",
        "authorizer_serviceaccount kubernetes.authorization.Authorizer.(string, string) -> kubernetes.authorization.Authorizer",
    ),
    (
        "resource",
        "groupcheck_resource kubernetes.authorization.GroupCheck.(string) -> kubernetes.authorization.ResourceCheck",
    ),
    (
        "subresource",
        "resourcecheck_subresource kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
    ),
    (
        "namespace",
        "resourcecheck_namespace kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
    ),
    (
        "name",
        "resourcecheck_name kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
    ),
    (
        "fieldSelector",
        "authorizer_fieldselector kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
    ),
    (
        "labelSelector",
        "authorizer_labelselector kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
    ),
    (
        "check",
        "pathcheck_check kubernetes.authorization.PathCheck.(string) -> kubernetes.authorization.Decision
        resourcecheck_check kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.Decision",
    ),
    ("errored", "decision_errored kubernetes.authorization.Decision.() -> bool"),
    ("error", "decision_error kubernetes.authorization.Decision.() -> string"),
    ("allowed", "decision_allowed kubernetes.authorization.Decision.() -> bool"),
    ("reason", "decision_reason kubernetes.authorization.Decision.() -> string"),
    // Patches.
    ("jsonpatch.escapeKey", "string_jsonpatch_escapeKey_string (string) -> string"),
];
