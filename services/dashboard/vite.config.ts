import { defineConfig } from "vite";

export default defineConfig({
  build: {
    target: "es2022",
    // The polyfill would be a script of its own; every browser with ES2022 has the feature.
    modulePreload: { polyfill: false },
    // Data addresses are allowed by the gateway for pictures only.
    assetsInlineLimit: 0,
    reportCompressedSize: true,
  },
});
