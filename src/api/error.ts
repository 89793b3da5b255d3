// The body of every error response, in OpenAI's format.
import { z } from "zod";

export const ErrorResponse = z
  .object({
    error: z.object({
      message: z.string().describe("The problem, in one line."),
      type: z.string().describe("The kind of error, such as invalid_request_error."),
      param: z.string().nullable().describe("The invalid parameter, as a dotted path."),
      code: z.string().nullable().describe("An identifier of the error for programs."),
    }),
  })
  .meta({ id: "ErrorResponse" });
export type ErrorResponse = z.infer<typeof ErrorResponse>;
