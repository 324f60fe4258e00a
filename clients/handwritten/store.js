// A store of objects, and the calls of a handler: R3, R4, R5 and R10 of docs/clients.md.
export const keyOf = ({ namespace, name }) => (namespace ? `${namespace}/${name}` : name);
const isSame = (a, b) => a.uid === b.uid && Buffer.compare(a.raw, b.raw) === 0 && JSON.stringify(a.labels) === JSON.stringify(b.labels);
const normal = ({ body, raw = Buffer.alloc(0), labels, ...object }) => {
  return { ...object, hasBody: body === "raw", raw: Buffer.from(raw), labels: labels.sort((a, b) => (a.key < b.key ? -1 : 1)) };
};

export class Store {
  objects = new Map(); waiting = 0; last = Promise.resolve();
  /** `handle` is called with ("added", object), ("updated", object, old) and ("deleted", last, undefined, cause), one call at a time. */
  constructor(handle, report, maxWaiting = 10_000) { Object.assign(this, { handle, report, maxWaiting }); }
  /** Applies changes in one step: all of them, or for a list the difference. */
  apply(changes, isList) {
    const calls = [], next = isList ? new Map(changes.map((object) => [keyOf(object), object])) : undefined;
    for (const [key, old] of next ? this.objects : []) if (!next.has(key)) this.remove(key, old, "INFERRED", calls);
    for (const change of (next?.values() ?? changes)) {
      const { cause, ...object } = normal(change), key = keyOf(object), old = this.objects.get(key);
      const isOther = old && old.uid !== object.uid;
      if (cause === undefined) {
        if (isOther) this.remove(key, old, "INFERRED", calls);
        this.objects.set(key, object);
        if (!old || isOther) calls.push(["added", object]);
        else if (!isSame(old, object)) calls.push(["updated", object, old]);
      } else if (old && !(isOther && old.uid && object.uid)) this.remove(key, object.hasBody ? object : old, cause, calls);
    }
    calls.forEach((call) => this.call(call));
  }
  remove(key, last, cause, calls) {
    this.objects.delete(key);
    calls.push(["deleted", last, undefined, cause === "UNSPECIFIED" ? "DELETED" : cause]);
  }
  /** Lets the handler run after the store, and after its last call. */
  call(call) {
    if (++this.waiting === this.maxWaiting + 1) this.report(new Error(`${this.waiting} calls wait for the handler`));
    const run = async () => { this.waiting--; if (!this.isStopped) await this.handle(...call); };
    this.last = this.last.then(run).catch(this.report);
  }
}
