// What every page has. Each module looks after the attributes that it documents.
import './live.js';
import './time.js';
import './act.js';
import './nav.js';
