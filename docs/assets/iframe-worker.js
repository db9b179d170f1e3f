// A browser starts no Worker from a page that was opened from disk, and the search runs in one.
// There, the worker's script runs in an empty hidden frame instead, which is given what the search
// uses of a worker: messages in and out. Pages that come from a server are left alone.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href);
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      this.inside.document.head.append(script);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker; // the theme looks for both names
}
