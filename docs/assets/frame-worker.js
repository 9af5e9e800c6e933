// Browsers do not start a worker from a page that was opened from a disk (file://). There, this class takes the
// place of Worker and runs the script in a hidden frame, so that search works without a server and a network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      frame.srcdoc = "<!doctype html><title>search</title>";
      this.frame = frame;
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.receive(data);
          const script = inner.document.createElement("script");
          script.src = new URL(url, location.href).href;
          script.addEventListener("load", () => resolve(inner));
          inner.document.body.append(script);
        });
      });
      document.body.append(frame);
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
