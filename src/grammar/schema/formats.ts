// JSON Schema's formats as regular expressions.

const leap = "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)";
const day = "(0[1-9]|1\\d|2[0-8])";
const days = `((0[13578]|1[02])-(${day}|29|30|31)|(0[469]|11)-(${day}|29|30)|02-${day})`;
const date = `(\\d{4}-${days}|${leap}-02-29)`;
const zone = "(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
const time = `([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?${zone}`;
const count = "\\d{1,9}";
const clock = `T(${count}H(${count}M)?(${count}S)?|${count}M(${count}S)?|${count}S)`;
const calendar = `(${count}Y(${count}M)?(${count}D)?|${count}M(${count}D)?|${count}D)`;
const byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const group = "[0-9a-fA-F]{1,4}";
const label = "[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?";
const host = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?";
const visible = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
const path = `(//${host}(\\.${host})*(:\\d{1,5})?(/${visible}*)*|${visible}+)`;

/** Patterns of formats. A pattern may be narrower than its format, to stay cheap to enforce. */
export const formatPatterns: ReadonlyMap<unknown, string> = new Map(
  Object.entries({
    date: `^${date}$`,
    time: `^${time}$`,
    "date-time": `^${date}T${time}$`,
    duration: `^P(${count}W|${calendar}(${clock})?|${clock})$`,
    email: `^[\\w+-]+(\\.[\\w+-]+)*@(${host}\\.)+[a-zA-Z]{2,}$`,
    hostname: `^${label}(\\.${label}){0,3}$`,
    ipv4: `^(${byte}\\.){3}${byte}$`,
    ipv6: `^((${group}:){7}${group}|(${group}:){1,7}:|(${group}:){1,6}:${group}|::${group})$`,
    uuid: "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
    uri: `^[a-zA-Z][a-zA-Z0-9+.-]*:${path}(\\?(${visible}|[/?])*)?(#(${visible}|[/?])*)?$`,
  }),
);

/** Formats of JSON Schema that are not enforced. Any other unknown name is an annotation. */
export const unsupportedFormats = new Set<unknown>([
  ...["idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "url"],
  ...["json-pointer", "relative-json-pointer", "regex", "byte", "iso-time", "iso-date-time"],
]);
