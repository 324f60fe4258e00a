/** Order of resource versions: decimals by their number, `<lineage>.<n>` by n within one lineage. */
import { InformerdError } from "./errors.js";

interface Version {
  /** Empty for a decimal. */
  lineage: string;
  number: bigint;
}

const FORM = /^(?:(.+)\.)?(\d+)$/;

function tryParse(text: string): Version | undefined {
  const match = FORM.exec(text);
  return match ? { lineage: match[1] ?? "", number: BigInt(match[2] as string) } : undefined;
}

function parse(text: string): Version {
  const version = tryParse(text);
  if (!version) {
    throw new InformerdError(`invalid resource version "${text}": expected a decimal or <lineage>.<n>`, {
      code: "INVALID_ARGUMENT",
      reason: "RESOURCE_VERSION_INVALID",
    });
  }
  return version;
}

/** Returns true if both versions have an order, and the first is lower. */
export function isLower(version: string, than: string): boolean {
  if (version === than) return false;
  const [a, b] = [tryParse(version), tryParse(than)];
  return a !== undefined && b !== undefined && a.lineage === b.lineage && a.number < b.number;
}

/** Checks that a text is a version. */
export function checkVersion(text: string): void {
  parse(text);
}

/**
 * Returns true if a state at version `current` contains the version `wanted`. Versions of different lineages have no order:
 * that is an error.
 */
export function hasReached(current: string, wanted: string): boolean {
  if (current === wanted) return true;
  const [now, goal] = [parse(current), parse(wanted)];
  if (now.lineage !== goal.lineage) {
    throw new InformerdError(
      `resource version "${wanted}" is of another lineage than the store's version "${current}": they have no order`,
      { code: "OUT_OF_RANGE", reason: "RESOURCE_VERSION_EXPIRED" },
    );
  }
  return now.number >= goal.number;
}
